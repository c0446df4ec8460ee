//! Memory and events of other processes.
//!
//! A handle says in which process's file the memory is, and where in it; whoever opens it takes the file from `/proc`, which the
//! kernel allows processes of the same user.

use std::fs::File;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::mm::ProtFlags;

use crate::abi::{Out, Shareable};
use crate::api::ready;
use crate::device::process::start_time;
use crate::engine::event::{Event, Shared};
use crate::error::Code;
use crate::memory::addresses::{Kind, Span};
use crate::memory::arena;
use crate::objects::number;
use crate::process::Process;

/// The first words of handles to memory, to events, and to allocations of pools.
const MEMORY: u64 = 0x736f_6674_6d65_6d31;
const EVENT: u64 = 0x736f_6674_6576_7431;
pub(super) const POOLED: u64 = 0x736f_6674_706f_6f31;

/// Mappings begin and end at multiples of this.
const HOST_PAGE: u64 = 4096;

api! {
    fn cuIpcGetMemHandle(place: Out<Shareable>, address: u64) {
        let process = ready()?;
        let span = process.memory.addresses.find(address).filter(|span| matches!(span.kind, Kind::Device { .. }));
        place.set(share(process, MEMORY, &span.ok_or(Code::INVALID_VALUE)?))
    }

    fn cuIpcOpenMemHandle(place: Out<u64>, handle: Shareable, flags: u32) {
        place.set(open_memory(ready()?, MEMORY, &handle, flags)?)
    }

    fn cuIpcOpenMemHandle_v2(place: Out<u64>, handle: Shareable, flags: u32) {
        place.set(open_memory(ready()?, MEMORY, &handle, flags)?)
    }

    fn cuIpcCloseMemHandle(address: u64) {
        let process = ready()?;
        let imported = |span: &Span| matches!(span.kind, Kind::Imported { .. });
        if !process.memory.addresses.find(address).is_some_and(|span| span.start == address && imported(&span)) {
            return Err(Code::INVALID_VALUE);
        }
        process.quiesce()?;
        close(process, address)
    }

    fn cuIpcGetEventHandle(place: Out<Shareable>, event: u64) {
        let process = ready()?;
        let event = process.objects.events.get(event)?;
        let file = event.shared().ok_or(Code::INVALID_VALUE)?.number();
        let mut words = origin(EVENT);
        words[3] = file as u64;
        place.set(Shareable { words })
    }

    fn cuIpcOpenEventHandle(place: Out<u64>, handle: Shareable) {
        let process = ready()?;
        let shared = Shared::new(Some(file(&handle, EVENT)?))?;
        place.set(process.objects.events.add(Arc::new(Event::new(false, Some(shared)))))
    }
}

/// A handle to memory of this process's arena.
pub(super) fn share(process: &Process, what: u64, span: &Span) -> Shareable {
    let mut words = origin(what);
    words[3] = process.memory.arena.number() as u64;
    words[4] = process.memory.arena.offset(span.start);
    words[5] = span.length;
    Shareable { words }
}

/// Maps memory of another process; its address here.
pub(super) fn open_memory(process: &Process, what: u64, handle: &Shareable, flags: u32) -> Result<u64, Code> {
    if flags > 1 {
        return Err(Code::INVALID_VALUE);
    }
    let context = process.current()?.handle;
    let [.., offset, length, _, _] = handle.words;
    let file = file(handle, what)?;
    // Small allocations lie anywhere within a page.
    let inside = offset % HOST_PAGE;
    let whole = inside
        .checked_add(length)
        .and_then(|end| end.checked_next_multiple_of(HOST_PAGE))
        .ok_or(Code::INVALID_VALUE)?;
    let size = rustix::fs::fstat(&file).map_err(|_| Code::INVALID_VALUE)?.st_size as u64;
    if length == 0 || offset - inside + whole > size {
        return Err(Code::INVALID_VALUE);
    }
    let base = arena::reserve(whole)?;
    use std::os::fd::AsFd;
    arena::map(base, whole, file.as_fd(), offset - inside, ProtFlags::READ | ProtFlags::WRITE).inspect_err(
        |_| {
            arena::release(base, whole);
        },
    )?;
    let (start, kind) = (base + inside, Kind::Imported { mapping: (base, whole) });
    process.memory.addresses.insert(Span { start, length, kind, context, id: number() });
    Ok(start)
}

/// Takes away what [`open_memory`] mapped.
pub(super) fn close(process: &Process, address: u64) -> Result<(), Code> {
    let imported = |span: &Span| matches!(span.kind, Kind::Imported { .. });
    let span = process.memory.addresses.remove(address, imported).ok_or(Code::INVALID_VALUE)?;
    if let Kind::Imported { mapping: (base, whole) } = span.kind {
        arena::release(base, whole);
    }
    Ok(())
}

/// What is being shared, and by whom.
fn origin(what: u64) -> [u64; 8] {
    let pid = std::process::id();
    let mut words = [0; 8];
    words[..3].copy_from_slice(&[what, u64::from(pid), start_time(pid).unwrap_or(0)]);
    words
}

/// The file that a handle of another, living process names.
fn file(handle: &Shareable, what: u64) -> Result<File, Code> {
    let [found, pid, started, number, ..] = handle.words;
    if found != what {
        return Err(Code::INVALID_HANDLE);
    }
    let pid = u32::try_from(pid).map_err(|_| Code::INVALID_HANDLE)?;
    if pid == std::process::id() {
        // A process cannot open its own handles: documented.
        return Err(Code::INVALID_CONTEXT);
    }
    if start_time(pid) != Some(started) {
        return Err(Code::INVALID_HANDLE);
    }
    let path = format!("/proc/{pid}/fd/{number}");
    let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    file.map(File::from).map_err(|_| Code::INVALID_HANDLE)
}
