//! Names of the environment variables that tenants read, most of them through the shim. The node sets the first two, `partywall measure` those
//! of the wall `sides`; the others are for people.

/// Path of the node's socket for tenants. Without it the shim counts coverage and passes everything through.
pub const SOCKET: &str = "PARTYWALL_SOCKET";

/// 32 hexadecimal digits that name a tenant to the node and prove that a process is one of its own.
pub const TOKEN: &str = "PARTYWALL_TOKEN";

/// Absolute path of the real `libcuda.so.1`. Default: the usual folders and those of `LD_LIBRARY_PATH`.
pub const REAL_CUDA: &str = "PARTYWALL_REAL_CUDA";

/// Absolute path of the real `libnvidia-ml.so.1`. Default: what the loader finds.
pub const REAL_NVML: &str = "PARTYWALL_REAL_NVML";

/// The colored arena that the tenant's memory is, and what is to be done to its kernels, as `partywall vram rewrite --arena` takes it. Default:
/// none, and code is loaded as it is.
pub const ARENA: &str = "PARTYWALL_ARENA";

/// The side of the chip that the tenant's memory is to be on, `first` or `second`, where it is behind the wall `sides`; [`SIDE_KNOWN`] says where
/// that is. The shim does not read it: the library of [`SIDE_LIBRARY`] does.
pub const SIDE: &str = "PARTYWALL_SIDE";

/// Absolute path of a file that says where the sides of this GPU are: JSON of `partywall_vram::sides::Known`.
pub const SIDE_KNOWN: &str = "PARTYWALL_SIDE_KNOWN";

/// Absolute path of `libpartywall_side.so`, which gives a program memory of its side.
pub const SIDE_LIBRARY: &str = "PARTYWALL_SIDE_LIBRARY";

/// File to which the coverage table is written when the process ends; `-` is standard error. Default: none.
pub const COVERAGE: &str = "PARTYWALL_COVERAGE";

/// How a stream is held until its copy is through: `memop` (stream memory operations; the default), `hostfunc` (a host
/// function in the stream), or `off` (copies are passed through and only counted).
pub const COPY_GATE: &str = "PARTYWALL_COPY_GATE";

/// Microseconds between two packets while a latency-sensitive neighbour has a copy on its way. Default: 20. For measurements.
pub const COPY_PAUSE_US: &str = "PARTYWALL_COPY_PAUSE_US";

/// Microseconds for which the copier looks without pause after something has happened. Default: 100. For measurements.
pub const COPY_SPIN_US: &str = "PARTYWALL_COPY_SPIN_US";
