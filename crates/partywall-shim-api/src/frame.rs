//! The frames on the socket between a shim and the node: one message each, of at most [`FRAME_BYTES`].
//!
//! A connection belongs to one process of a tenant and begins with [`ToNode::Hello`]. The node answers with
//! [`ToShim::Welcome`], which carries two descriptors (the page, the bell), or with [`ToShim::Refused`] and closes. The end of
//! the connection is the end of the process for the node: what it held is returned to the tenant.
//!
//! Memory: a process has a *lease*, a number of bytes out of its tenant's quota. It asks for more before it goes to the
//! driver, and gives back what it does not need. Both are answered with the new total. The node may ask for unused memory
//! with [`ToShim::Recall`] when a sibling needs it.
//!
//! Numbers are little-endian. A frame begins with its kind (4 bytes) and the length of what follows (4 bytes).

#[cfg(test)]
mod tests;

/// Longest frame. Names of entry points are the longest thing sent, and go in as many frames as they need.
pub const FRAME_BYTES: usize = 1024;

/// Longest text within a frame.
pub const TEXT_BYTES: usize = FRAME_BYTES - 64;

const HEAD_BYTES: usize = 8;

/// Why bytes are no frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Shorter or longer than it says.
    #[error("{bytes} bytes, which is not the length that it states")]
    Length {
        /// How many there are.
        bytes: usize,
    },
    /// A kind that this version does not have.
    #[error("kind {0}, which version {version} does not have", version = crate::VERSION)]
    Kind(u32),
    /// Fields that end before they should, or go on after.
    #[error("a frame of kind {0} whose fields do not fill it")]
    Fields(u32),
    /// Text that is not UTF-8.
    #[error("text that is not UTF-8")]
    Text,
}

/// How an entry point of the driver is treated, as it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Disposition {
    /// Partywall enforces its promises there.
    Enforced = 0,
    /// Passed through knowingly: it has nothing to enforce, or the documentation says what is not.
    Passed = 1,
    /// Refused: it cannot be enforced and would break a promise.
    Refused = 2,
    /// In nobody's list. The tenant is not guaranteed.
    Unknown = 3,
}

impl Disposition {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Enforced, Self::Passed, Self::Refused, Self::Unknown];

    /// What reports call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enforced => "enforced",
            Self::Passed => "passed",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
        }
    }
}

/// From a shim to the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToNode {
    /// The first frame of a process.
    Hello {
        /// [`crate::VERSION`] of the shim.
        version: u32,
        /// The tenant's secret.
        token: [u8; 16],
        /// What the process holds already, in bytes as the ledger counts: above zero when it re-registers.
        held_bytes: u64,
    },
    /// More memory, please. Answered with [`ToShim::Lease`].
    Ask {
        /// Bytes that the lease must grow by to be of use.
        need_bytes: u64,
        /// Bytes that it may grow by.
        want_bytes: u64,
    },
    /// Less is enough. Answered with [`ToShim::Lease`].
    Give {
        /// Bytes by which the lease may shrink.
        bytes: u64,
    },
    /// Entry points that the program has resolved or called, separated by blanks. Adds to what was sent before.
    Coverage {
        /// How they are treated.
        disposition: Disposition,
        /// Their names, at most [`TEXT_BYTES`].
        names: String,
    },
    /// Something that a person should read: the tenant is not guaranteed, and why. At most [`TEXT_BYTES`].
    Notice {
        /// One line.
        text: String,
    },
}

/// From the node to a shim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToShim {
    /// The process is known now. Carries two descriptors: the page and the bell.
    Welcome {
        /// [`crate::VERSION`] of the node.
        version: u32,
        /// Its lease so far: at least what it said it holds, if that fits.
        lease_bytes: u64,
    },
    /// The process is not one of a tenant, or of another version; the connection ends.
    Refused {
        /// [`crate::VERSION`] of the node.
        version: u32,
        /// Why, and what would be right.
        text: String,
    },
    /// The lease as it is now.
    Lease {
        /// All of it.
        total_bytes: u64,
        /// Whether the last [`ToNode::Ask`] got at least what it needs.
        granted: bool,
    },
    /// A sibling needs memory: give back what is not used.
    Recall,
    /// Send the coverage so far.
    AskCoverage,
}

/// A frame that is being written.
struct Writer(Vec<u8>);

impl Writer {
    fn new(kind: u32) -> Self {
        Self([kind.to_le_bytes(), [0; 4]].concat())
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn bytes(mut self, value: &[u8]) -> Self {
        self.0.extend_from_slice(value);
        self
    }

    /// Text comes last. What is too long is cut between characters.
    fn text(self, value: &str) -> Self {
        let mut end = value.len().min(TEXT_BYTES);
        while !value.is_char_boundary(end) {
            end -= 1;
        }
        self.bytes(&value.as_bytes()[..end])
    }

    fn done(mut self) -> Vec<u8> {
        let length = (self.0.len() - HEAD_BYTES) as u32;
        self.0[4..HEAD_BYTES].copy_from_slice(&length.to_le_bytes());
        self.0
    }
}

/// A frame that is being read.
struct Reader<'a> {
    kind: u32,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let wrong = FrameError::Length { bytes: bytes.len() };
        let (kind, rest) = bytes.split_first_chunk().ok_or(wrong.clone())?;
        let (length, rest) = rest.split_first_chunk().ok_or(wrong.clone())?;
        if u32::from_le_bytes(*length) as usize != rest.len() || bytes.len() > FRAME_BYTES {
            return Err(wrong);
        }
        Ok(Self { kind: u32::from_le_bytes(*kind), rest })
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let (value, rest) = self.rest.split_first_chunk().ok_or(FrameError::Fields(self.kind))?;
        self.rest = rest;
        Ok(*value)
    }

    fn u32(&mut self) -> Result<u32, FrameError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, FrameError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn text(&mut self) -> Result<String, FrameError> {
        let text = std::str::from_utf8(self.rest).map_err(|_| FrameError::Text)?;
        self.rest = &[];
        Ok(text.to_owned())
    }

    fn end<T>(&self, value: T) -> Result<T, FrameError> {
        if self.rest.is_empty() { Ok(value) } else { Err(FrameError::Fields(self.kind)) }
    }
}

impl ToNode {
    /// The bytes to send.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello { version, token, held_bytes } => {
                Writer::new(1).u32(*version).bytes(token).u64(*held_bytes).done()
            }
            Self::Ask { need_bytes, want_bytes } => Writer::new(2).u64(*need_bytes).u64(*want_bytes).done(),
            Self::Give { bytes } => Writer::new(3).u64(*bytes).done(),
            Self::Coverage { disposition, names } => {
                Writer::new(4).u32(*disposition as u32).text(names).done()
            }
            Self::Notice { text } => Writer::new(5).text(text).done(),
        }
    }

    /// What was received.
    ///
    /// # Errors
    /// Any bytes may come: what is no frame says why.
    pub fn decode(bytes: &[u8]) -> Result<Self, FrameError> {
        let mut frame = Reader::new(bytes)?;
        let value = match frame.kind {
            1 => Self::Hello { version: frame.u32()?, token: frame.array()?, held_bytes: frame.u64()? },
            2 => Self::Ask { need_bytes: frame.u64()?, want_bytes: frame.u64()? },
            3 => Self::Give { bytes: frame.u64()? },
            4 => {
                let number = frame.u32()? as usize;
                let disposition = *Disposition::ALL.get(number).ok_or(FrameError::Fields(4))?;
                Self::Coverage { disposition, names: frame.text()? }
            }
            5 => Self::Notice { text: frame.text()? },
            kind => return Err(FrameError::Kind(kind)),
        };
        frame.end(value)
    }
}

impl ToShim {
    /// The bytes to send.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Welcome { version, lease_bytes } => Writer::new(101).u32(*version).u64(*lease_bytes).done(),
            Self::Refused { version, text } => Writer::new(102).u32(*version).text(text).done(),
            Self::Lease { total_bytes, granted } => {
                Writer::new(103).u64(*total_bytes).u32(u32::from(*granted)).done()
            }
            Self::Recall => Writer::new(104).done(),
            Self::AskCoverage => Writer::new(105).done(),
        }
    }

    /// What was received.
    ///
    /// # Errors
    /// Any bytes may come: what is no frame says why.
    pub fn decode(bytes: &[u8]) -> Result<Self, FrameError> {
        let mut frame = Reader::new(bytes)?;
        let value = match frame.kind {
            101 => Self::Welcome { version: frame.u32()?, lease_bytes: frame.u64()? },
            102 => Self::Refused { version: frame.u32()?, text: frame.text()? },
            103 => Self::Lease { total_bytes: frame.u64()?, granted: frame.u32()? != 0 },
            104 => Self::Recall,
            105 => Self::AskCoverage,
            kind => return Err(FrameError::Kind(kind)),
        };
        frame.end(value)
    }
}
