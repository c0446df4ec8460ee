//! What putting copies into streams needs of a driver: the real one, or a model of it in tests.

/// What a function of the driver returned, other than success.
pub(super) type Code = crate::sys::CUresult;

/// A stream's handle; 0, 1 and 2 are default streams.
pub(crate) type Stream = usize;

/// Something that a stream does to a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// Writes it, after all that came before in the stream.
    Write {
        /// The device's address of the word.
        address: u64,
        /// What to.
        value: u32,
    },
    /// Holds what comes after until the word has reached a value, cyclically.
    Wait {
        /// The device's address of the word.
        address: u64,
        /// Which.
        value: u32,
    },
}

/// The calls. All take effect in the context that is current, and none waits for the device.
pub(super) trait Driver {
    /// What is copied, and how a part of it is.
    type What;

    /// Puts marks into a stream, in this order.
    fn marks(&self, stream: Stream, marks: &[Mark]) -> Result<(), Code>;
    /// Puts a copy of `bytes` from `offset` on into a stream.
    fn copy(&self, stream: Stream, what: &Self::What, offset: u64, bytes: u64) -> Result<(), Code>;
    /// Makes host memory known to the device. Returns where the device finds it.
    fn register(&self, address: usize, bytes: usize) -> Result<u64, Code>;
    /// What is wrong with a stream, if something is.
    fn trouble(&self, stream: Stream) -> Result<(), Code>;
    /// Waits on the host for a stream.
    fn drain(&self, stream: Stream) -> Result<(), Code>;
    /// Nanoseconds of a clock that only goes forward.
    fn now(&self) -> u64;
    /// Lets some microseconds pass.
    fn nap(&self);
}
