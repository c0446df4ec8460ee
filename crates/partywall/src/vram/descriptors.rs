//! File descriptors from one process to another, over a socket with a name.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// Descriptors in a message; the kernel takes 253.
const AT_ONCE: usize = 64;

/// Gives them to the first that connects to `path`, which must not exist; on a thread, so that it is there when this returns.
pub(super) fn offer(path: &Path, files: Vec<OwnedFd>) -> io::Result<()> {
    let listener = UnixListener::bind(path)?;
    std::thread::spawn(move || {
        // Who waits for them is told by the end of the connection that something went wrong.
        let _ = listener.accept().and_then(|(to, _)| send(&to, &files));
    });
    Ok(())
}

fn send(to: &UnixStream, files: &[OwnedFd]) -> io::Result<()> {
    for some in files.chunks(AT_ONCE) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let some: Vec<_> = some.iter().map(OwnedFd::as_fd).collect();
        if !control.push(SendAncillaryMessage::ScmRights(&some)) {
            return Err(io::Error::other("no room for descriptors"));
        }
        // Descriptors need a byte to go with.
        sendmsg(to, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
    }
    Ok(())
}

/// Takes `count` of them from whoever offers them at `path`.
pub(super) fn fetch(path: &Path, count: usize) -> io::Result<Vec<OwnedFd>> {
    let from = UnixStream::connect(path)?;
    let mut files = Vec::with_capacity(count);
    while files.len() < count {
        let mut byte = [0];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received =
            recvmsg(&from, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        if received.bytes == 0 {
            let message = format!("{} of {count} file descriptors came", files.len());
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = message {
                files.extend(some);
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _, Write as _};

    use super::*;

    #[test]
    fn descriptors_arrive_in_their_order_and_all_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let count = 2 * AT_ONCE + 3;
        let files = (0..count).map(|number| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&[number as u8]).unwrap();
            file.rewind().unwrap();
            OwnedFd::from(file)
        });
        offer(&path, files.collect()).unwrap();
        let fetched = fetch(&path, count).unwrap();
        let first = |file: OwnedFd| {
            let mut byte = [0];
            std::fs::File::from(file).read_exact(&mut byte).unwrap();
            usize::from(byte[0])
        };
        assert_eq!(fetched.into_iter().map(first).collect::<Vec<_>>(), (0..count).collect::<Vec<_>>());
    }

    #[test]
    fn too_few_are_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        offer(&path, vec![OwnedFd::from(tempfile::tempfile().unwrap())]).unwrap();
        assert_eq!(fetch(&path, 2).unwrap_err().to_string(), "1 of 2 file descriptors came");
    }
}
