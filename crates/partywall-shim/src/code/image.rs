//! What code a program gives the driver: text, or compiled.

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt as _;

/// Code as a program has it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Image {
    /// PTX.
    Text(String),
    /// For one kind of GPU, as an ELF file.
    Compiled(Vec<u8>),
    /// Several together, perhaps packed, or what no assembler has seen yet.
    Archive,
}

/// How an ELF file begins.
const ELF: &[u8] = b"\x7fELF";
/// How archives begin: the one that `fatbinary` makes, and what points to it in a program.
const ARCHIVES: [u32; 2] = [0xba55_ed50, 0x4662_43b1];
/// Largest compiled code that is looked at. Larger is taken for other people's.
const COMPILED_MAX: usize = 1 << 30;

/// The code at an address; `None` at null.
///
/// # Safety
/// An image as `cuModuleLoadData` takes it: text up to a zero byte, an ELF file, or an archive.
pub(super) unsafe fn at(image: *const c_void) -> Option<Image> {
    if image.is_null() {
        return None;
    }
    let start = image.cast::<u8>();
    // Text may be shorter than four bytes: one by one, up to a zero byte.
    let mut first = [0; 4];
    for (index, byte) in first.iter_mut().enumerate() {
        // SAFETY: every byte before this one was part of the image and not its end.
        *byte = unsafe { start.add(index).read() };
        if *byte == 0 {
            break;
        }
    }
    if first == ELF {
        // SAFETY: an ELF file has a header of this length.
        let header = unsafe { std::slice::from_raw_parts(start, HEADER) };
        let bytes = length(header, |offset, count| {
            // SAFETY: the header says that the table of sections is there.
            unsafe { std::slice::from_raw_parts(start.add(offset), count) }
        });
        let Some(bytes) = bytes else { return Some(Image::Archive) };
        // SAFETY: the header says that it has so many bytes.
        return Some(Image::Compiled(unsafe { std::slice::from_raw_parts(start, bytes) }.to_vec()));
    }
    if is_archive(first) {
        return Some(Image::Archive);
    }
    // SAFETY: whatever else there is, the driver takes for text that ends with a zero byte.
    Some(text(unsafe { CStr::from_ptr(image.cast()) }.to_bytes()))
}

/// The code in so many bytes; `None` where there are none.
///
/// # Safety
/// So many readable bytes.
pub(super) unsafe fn of_bytes(data: *const c_void, size: usize) -> Option<Image> {
    if data.is_null() || size == 0 {
        return None;
    }
    // SAFETY: as the caller says.
    Some(of(unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) }))
}

/// The code in a file; `None` where it cannot be read.
///
/// # Safety
/// A path that ends with a zero byte, or null.
pub(super) unsafe fn of_file(path: *const c_char) -> Option<Image> {
    if path.is_null() {
        return None;
    }
    // SAFETY: as the caller says.
    let path = OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes());
    std::fs::read(path).ok().map(|bytes| of(&bytes))
}

fn of(bytes: &[u8]) -> Image {
    match bytes.first_chunk::<4>() {
        Some(first) if first == ELF => Image::Compiled(bytes.to_vec()),
        Some(first) if is_archive(*first) => Image::Archive,
        _ => text(bytes.split(|byte| *byte == 0).next().unwrap_or_default()),
    }
}

fn is_archive(first: [u8; 4]) -> bool {
    ARCHIVES.contains(&u32::from_le_bytes(first))
}

/// Bytes that are no text are code of a kind that is not known here.
fn text(bytes: &[u8]) -> Image {
    std::str::from_utf8(bytes).map_or(Image::Archive, |text| Image::Text(text.to_owned()))
}

/// Bytes of an ELF header of 64 bits, and of an entry of its table of sections.
const HEADER: usize = 64;
const SECTION: usize = 64;
/// `SHT_NOBITS`: a section that has no bytes in the file.
const NO_BITS: u32 = 8;

/// The length of an ELF file in memory, from its header and, through `at`, its table of sections.
fn length<'a>(header: &[u8], at: impl FnOnce(usize, usize) -> &'a [u8]) -> Option<usize> {
    let programs = table(header, 0x20, 0x36)?;
    let sections = table(header, 0x28, 0x3a)?;
    let mut end = HEADER.max(programs.0 + programs.1).max(sections.0 + sections.1);
    if sections.1 > 0 {
        let entry = usize::from(half(header, 0x3a)?);
        if entry < SECTION {
            return None;
        }
        for section in at(sections.0, sections.1).chunks_exact(entry) {
            if word(section, 4)? != NO_BITS {
                let (offset, size) = (long(section, 0x18)?, long(section, 0x20)?);
                end = end.max(offset.checked_add(size)?);
            }
        }
    }
    (end <= COMPILED_MAX).then_some(end)
}

/// Offset and length of a table, from where the header has its offset, and the length and the number of its entries.
fn table(header: &[u8], offset: usize, entries: usize) -> Option<(usize, usize)> {
    let (begin, size) = (
        long(header, offset)?,
        usize::from(half(header, entries)?) * usize::from(half(header, entries + 2)?),
    );
    begin.checked_add(size).filter(|end| *end <= COMPILED_MAX)?;
    Some((begin, size))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with one section of `bytes` bytes behind its header, and another that has none; the table of sections is last.
    fn elf(bytes: &[u8]) -> Vec<u8> {
        let mut file = vec![0; HEADER];
        file[..4].copy_from_slice(ELF);
        let table = HEADER + bytes.len();
        file[0x28..0x30].copy_from_slice(&(table as u64).to_le_bytes());
        file[0x3a..0x3c].copy_from_slice(&(SECTION as u16).to_le_bytes());
        file[0x3c..0x3e].copy_from_slice(&2_u16.to_le_bytes());
        file.extend(bytes);
        for (kind, offset, size) in [(1_u32, HEADER, bytes.len()), (NO_BITS, 0, 1 << 40)] {
            let mut section = [0; SECTION];
            section[4..8].copy_from_slice(&kind.to_le_bytes());
            section[0x18..0x20].copy_from_slice(&(offset as u64).to_le_bytes());
            section[0x20..0x28].copy_from_slice(&(size as u64).to_le_bytes());
            file.extend(section);
        }
        file
    }

    fn found(image: &[u8]) -> Option<Image> {
        // SAFETY: what the tests give is an image, or ends with a zero byte.
        unsafe { at(image.as_ptr().cast()) }
    }

    #[test]
    fn text_and_compiled_code_are_told_apart() {
        assert_eq!(found(b".version 8.0\n\0"), Some(Image::Text(".version 8.0\n".to_owned())));
        assert_eq!(found(b"\0"), Some(Image::Text(String::new())));
        assert_eq!(found(&[0x50, 0xed, 0x55, 0xba, 1, 0]), Some(Image::Archive));
        assert_eq!(found(&0x4662_43b1_u32.to_le_bytes()), Some(Image::Archive));
        assert_eq!(found(b"BC\xc0\xde\0"), Some(Image::Archive));
        let file = elf(b"some code");
        let longer = [&file[..], b"and what lies behind it"].concat();
        assert_eq!(found(&longer), Some(Image::Compiled(file)));
        // SAFETY: null is what is tried.
        assert_eq!(unsafe { at(std::ptr::null()) }, None);
    }

    #[test]
    fn a_length_comes_with_or_without_a_zero_byte() {
        for text in ["// PTX", "// PTX\0", "// PTX\0\0"] {
            // SAFETY: so many bytes.
            let found = unsafe { of_bytes(text.as_ptr().cast(), text.len()) };
            assert_eq!(found, Some(Image::Text("// PTX".to_owned())));
        }
        // SAFETY: no bytes.
        assert_eq!(unsafe { of_bytes(b"".as_ptr().cast(), 0) }, None);
    }

    #[test]
    fn a_header_that_cannot_be_is_somebody_elses() {
        let mut file = elf(b"");
        file[0x28..0x30].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(found(&file), Some(Image::Archive));
        let mut file = elf(b"");
        file[0x3a..0x3c].copy_from_slice(&8_u16.to_le_bytes());
        assert_eq!(found(&file), Some(Image::Archive));
    }
}
