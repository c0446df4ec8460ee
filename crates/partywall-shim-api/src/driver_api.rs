//! The functions that NVIDIA's driver libraries export, as lists made from NVIDIA's headers by `cargo xtask driver-api`.
//!
//! A library that stands in for `libcuda.so.1` must export every name of it: an executable that is linked against the
//! library does not start when one is missing. `build.rs` of such a crate reads `api/cuda.txt` itself; everybody else
//! reads it here.
//!
//! Terms. A *base name* is what a program writes and asks `cuGetProcAddress` for (`cuMemAlloc`). A *name* is an export
//! (`cuMemAlloc_v2`): of one base, of the CUDA version that brought it, and of one default stream: the legacy one, or the
//! one of each thread (`_ptds` where a function has no stream argument, `_ptsz` where it has one).

/// `api/cuda.txt` as it is: comment lines begin with `#`, the others have four columns with tabs between.
pub const CUDA_LIST: &str = include_str!("../api/cuda.txt");

/// `api/nvml.txt` as it is: comment lines begin with `#`, the others are names.
pub const NVML_LIST: &str = include_str!("../api/nvml.txt");

/// Which default stream a function means by the stream 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DefaultStream {
    /// The legacy stream of the context; also functions that no stream has to do with.
    Legacy,
    /// The calling thread's own: names that end in `_ptds` or `_ptsz`.
    PerThread,
}

/// One export of libcuda.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Function<'a> {
    /// The exported name: `cuMemcpyHtoD_v2_ptds`.
    pub name: &'a str,
    /// What programs ask for: `cuMemcpyHtoD`.
    pub base: &'a str,
    /// The CUDA version that brought it, as `cuDriverGetVersion` counts: 1000 major + 10 minor.
    pub cuda: u32,
    /// Which default stream it uses.
    pub default_stream: DefaultStream,
}

/// Base names that from a CUDA version on mean another one's function: the headers rename them.
const RENAMED: [(&str, u32, &str); 1] = [("cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags")];

/// Every function of libcuda, sorted by name.
pub fn cuda() -> impl Iterator<Item = Function<'static>> {
    CUDA_LIST.lines().filter_map(parse)
}

/// Every function of libnvidia-ml by name, sorted.
pub fn nvml() -> impl Iterator<Item = &'static str> {
    NVML_LIST.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// The function that a driver of this list gives to a program that asks for `base` and was built for CUDA `cuda`
/// (1000 major + 10 minor): the newest one that is not newer. With per-thread default streams, those without such a
/// variant are the same function for everybody.
#[must_use]
pub fn resolve(base: &str, cuda: u32, default_stream: DefaultStream) -> Option<Function<'static>> {
    let renamed = RENAMED.iter().find(|(old, since, _)| *old == base && cuda >= *since);
    let base = renamed.map_or(base, |(_, _, new)| new);
    let known = |wanted: DefaultStream| {
        let of_base = self::cuda().filter(|function| function.base == base && function.cuda <= cuda);
        of_base.filter(|function| function.default_stream == wanted).max_by_key(|function| function.cuda)
    };
    match default_stream {
        DefaultStream::Legacy => known(DefaultStream::Legacy),
        DefaultStream::PerThread => known(DefaultStream::PerThread).or_else(|| known(DefaultStream::Legacy)),
    }
}

/// One line of the list; `None` for comments and for what is no line of it.
fn parse(line: &str) -> Option<Function<'_>> {
    let mut columns = line.split('\t');
    let (name, base) = (columns.next()?, columns.next()?);
    let cuda = columns.next()?.parse().ok()?;
    let default_stream = match columns.next()? {
        "-" => DefaultStream::Legacy,
        "ptds" | "ptsz" => DefaultStream::PerThread,
        _ => return None,
    };
    Some(Function { name, base, cuda, default_stream })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_lists_is_read_and_in_order() {
        let lines: Vec<&str> = CUDA_LIST.lines().filter(|line| !line.starts_with('#')).collect();
        let functions: Vec<Function<'_>> = cuda().collect();
        assert_eq!(functions.len(), lines.len(), "a line that does not parse");
        assert!(functions.windows(2).all(|pair| pair[0].name < pair[1].name), "sorted and each name once");
        assert!(functions.iter().all(|function| function.name.starts_with(function.base)));
        assert!(functions.iter().all(|function| (2000..20000).contains(&function.cuda)));
        let names: Vec<&str> = nvml().collect();
        assert!(names.windows(2).all(|pair| pair[0] < pair[1]), "sorted and each name once");
        assert!(names.contains(&"nvmlDeviceGetMemoryInfo_v2"));
    }

    #[test]
    fn a_suffix_and_its_column_say_the_same() {
        for function in cuda() {
            let suffixed = function.name.ends_with("_ptds") || function.name.ends_with("_ptsz");
            assert_eq!(suffixed, function.default_stream == DefaultStream::PerThread, "{}", function.name);
        }
    }

    #[test]
    fn what_is_asked_for_is_the_newest_that_the_program_knows() {
        let name = |base, cuda, stream| resolve(base, cuda, stream).map(|function| function.name);
        let legacy = DefaultStream::Legacy;
        assert_eq!(name("cuMemAlloc", 13000, legacy), Some("cuMemAlloc_v2"));
        assert_eq!(name("cuMemAlloc", 3010, legacy), Some("cuMemAlloc"));
        assert_eq!(name("cuMemAlloc", 1000, legacy), None, "before it existed");
        assert_eq!(name("cuMemAlloc_v2", 13000, legacy), None, "an export is no base name");
        assert_eq!(name("", 13000, legacy), None);
        assert_eq!(name("cuGetProcAddress", 11080, legacy), Some("cuGetProcAddress"));
        assert_eq!(name("cuGetProcAddress", 12000, legacy), Some("cuGetProcAddress_v2"));
        assert_eq!(name("cuGraphInstantiate", 11040, legacy), Some("cuGraphInstantiate_v2"));
        assert_eq!(name("cuGraphInstantiate", 13000, legacy), Some("cuGraphInstantiateWithFlags"));
    }

    #[test]
    fn per_thread_streams_are_given_where_there_are_any() {
        let name = |base, cuda| resolve(base, cuda, DefaultStream::PerThread).map(|function| function.name);
        assert_eq!(name("cuMemcpyHtoD", 12000), Some("cuMemcpyHtoD_v2_ptds"));
        assert_eq!(name("cuLaunchKernel", 12000), Some("cuLaunchKernel_ptsz"));
        assert_eq!(name("cuMemAlloc", 12000), Some("cuMemAlloc_v2"));
    }
}
