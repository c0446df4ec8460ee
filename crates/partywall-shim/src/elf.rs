//! Finds a function of the C library without asking the loader.
//!
//! The library exports `dlsym` and `dlvsym` itself, so its own references to them end at itself. This reads the symbol
//! table of the loaded C library instead: `dl_iterate_phdr` gives the address of each object's dynamic section, and the
//! format of that and of the GNU hash table is fixed by the ABI.

use std::ffi::{CStr, c_int, c_void};
use std::os::raw::c_char;

use libc::{Elf64_Addr, Elf64_Phdr, Elf64_Sym, Elf64_Xword};

const DT_NULL: i64 = 0;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const STT_FUNC: u8 = 2;

/// An entry of a dynamic section.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: Elf64_Xword,
}

/// What is looked for, and what was found.
struct Search<'a> {
    name: &'a CStr,
    found: *const c_void,
}

/// The function `name` of the C library: of `libc.so.6`, or of `libdl.so.2` where that is a library of its own (before
/// glibc 2.34). Null if there is none.
pub(crate) fn of_c_library(name: &CStr) -> *const c_void {
    let mut search = Search { name, found: std::ptr::null() };
    // SAFETY: the callback has the right prototype and gets the pointer to `search`, which lives through the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

/// Looks through one object; 1 ends the iteration.
unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: `of_c_library` passed a `Search`; the loader passes a description that is valid during the callback.
    let (search, info) = unsafe { (&mut *data.cast::<Search<'_>>(), &*info) };
    if info.dlpi_name.is_null() || info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the loader's name of an object is a C string.
    let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
    let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    if !file.starts_with(b"libc.so") && !file.starts_with(b"libdl.so") {
        return 0;
    }
    // SAFETY: the loader's count and array of program headers belong together.
    let headers: &[Elf64_Phdr] =
        unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let Some(header) = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC) else { return 0 };
    // SAFETY: the header says where in the loaded object its dynamic section lies.
    search.found = unsafe { lookup(info.dlpi_addr, info.dlpi_addr + header.p_vaddr, search.name) };
    c_int::from(!search.found.is_null())
}

/// The function `name` of the object that is loaded at `base` and has its dynamic section at `dynamic`.
///
/// # Safety
/// Both must be of an object that is loaded and stays so.
unsafe fn lookup(base: Elf64_Addr, dynamic: Elf64_Addr, name: &CStr) -> *const c_void {
    let (mut strings, mut symbols, mut hash) = (0, 0, 0);
    let mut entry = dynamic as *const Dynamic;
    // SAFETY: a dynamic section ends with `DT_NULL`.
    while let Dynamic { tag, value } = unsafe { &*entry }
        && *tag != DT_NULL
    {
        // glibc has turned these into addresses, other loaders leave offsets.
        let address = if *value < base { base + value } else { *value };
        match *tag {
            DT_STRTAB => strings = address,
            DT_SYMTAB => symbols = address,
            DT_GNU_HASH => hash = address,
            _ => {}
        }
        // SAFETY: the end has not been reached.
        entry = unsafe { entry.add(1) };
    }
    if strings == 0 || symbols == 0 || hash == 0 {
        return std::ptr::null();
    }
    // SAFETY: the tables belong to one object, as the loader itself uses them.
    unsafe { hashed(hash as *const u32, symbols as *const Elf64_Sym, strings as *const c_char, name) }
        .map_or(std::ptr::null(), |value| (base + value) as *const c_void)
}

/// Looks a defined function up in a GNU hash table; its offset in the object.
///
/// # Safety
/// The three tables must be whole and belong together.
unsafe fn hashed(
    table: *const u32,
    symbols: *const Elf64_Sym,
    strings: *const c_char,
    name: &CStr,
) -> Option<Elf64_Addr> {
    let wanted = gnu_hash(name);
    // SAFETY: the table begins with four words, then come the filter (of 64-bit words), the buckets and the chains. The
    // walk stays within the chain of one bucket, whose last word has its lowest bit set, and symbol numbers in it are
    // within the symbol table, whose names are within the string table.
    unsafe {
        let [buckets, first, filter_words, _shift] = *table.cast::<[u32; 4]>();
        let bucket_table = table.add(4 + 2 * filter_words as usize);
        let chains = bucket_table.add(buckets as usize);
        let mut symbol = *bucket_table.add((wanted.checked_rem(buckets)?) as usize);
        if symbol < first {
            return None;
        }
        loop {
            let here = *chains.add((symbol - first) as usize);
            let entry = &*symbols.add(symbol as usize);
            let is_function = entry.st_info & 0xf == STT_FUNC && entry.st_shndx != 0;
            if here | 1 == wanted | 1
                && is_function
                && CStr::from_ptr(strings.add(entry.st_name as usize)) == name
            {
                return Some(entry.st_value);
            }
            if here & 1 == 1 {
                return None;
            }
            symbol += 1;
        }
    }
}

/// The hash function of GNU hash tables.
fn gnu_hash(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_published_one() {
        assert_eq!(gnu_hash(c""), 5381);
        assert_eq!(gnu_hash(c"printf"), 0x156b_2bb8);
    }

    #[test]
    fn functions_of_the_c_library_are_found_and_others_are_not() {
        // SAFETY: only the addresses are compared; the names exist in every glibc.
        for name in [c"dlsym", c"dlvsym", c"qsort", c"fork"] {
            let found = of_c_library(name);
            assert!(!found.is_null(), "{name:?}");
            // SAFETY: looks up a name in what is loaded.
            let loader = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            assert_eq!(owner(found), owner(loader), "{name:?}");
        }
        assert!(of_c_library(c"cuInit").is_null());
        assert!(of_c_library(c"").is_null());
    }

    fn owner(address: *const c_void) -> *mut c_void {
        let mut info = libc::Dl_info {
            dli_fname: std::ptr::null(),
            dli_fbase: std::ptr::null_mut(),
            dli_sname: std::ptr::null(),
            dli_saddr: std::ptr::null_mut(),
        };
        // SAFETY: `info` is writable.
        assert_ne!(unsafe { libc::dladdr(address, &raw mut info) }, 0);
        info.dli_fbase
    }
}
