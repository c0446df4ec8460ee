//! MIG: hardware partitions of a GPU, listed for everybody and changed only on request.
//!
//! A *GPU instance* has SMs, L2 and memory of its own; the *compute instance* in it is what a program uses, by its
//! UUID in `CUDA_VISIBLE_DEVICES`. Partywall reads the layout that is there. Creating and destroying instances belongs
//! to whoever owns the GPU: both take a [`ChangesGpu`], which no command makes on its own.

use std::ffi::{CStr, c_char};
use std::mem::{MaybeUninit, size_of};

use nvml_wrapper::error::{NvmlError as Raw, nvml_try};
use nvml_wrapper_sys::bindings as sys;
use serde::{Deserialize, Serialize};

use crate::nvml::{Device, NvmlError, named};

/// The caller's word that a GPU's layout may change, on the explicit wish of whoever owns it.
///
/// Neither `doctor` nor `measure` makes one. Hand it on from an option whose name says what it does; never from a
/// default.
#[derive(Debug)]
pub struct ChangesGpu(());

impl ChangesGpu {
    /// Makes the consent.
    pub fn yes_i_mean_it() -> Self {
        Self(())
    }
}

/// Whether a GPU is in MIG mode, and whether that will differ after its next reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigMode {
    /// Now.
    pub enabled: bool,
    /// After the next reset.
    pub enabled_after_reset: bool,
}

/// Where an instance lies, in memory slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// First slice.
    pub start: u32,
    /// Number of slices.
    pub size: u32,
}

/// A kind of GPU instance that a GPU offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// The number that `nvidia-smi mig -cgi` and [`Device::create_mig_instance`] take.
    pub id: u32,
    /// `3g.71gb`, where the driver names it.
    pub name: Option<String>,
    /// How many fit on the empty GPU.
    pub instances: u32,
    /// SMs of one.
    pub sms: u32,
    /// Memory of one, MiB.
    pub memory_mib: u64,
    /// Copy engines of one.
    pub copy_engines: u32,
    /// Where one may lie; empty where the driver does not tell, as it may without MIG mode.
    pub placements: Vec<Placement>,
}

/// An instance that exists and that a program can use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// `MIG-…`: what goes into `CUDA_VISIBLE_DEVICES`.
    pub uuid: String,
    /// `3g.71gb`, or the whole name where it does not end in a profile.
    pub profile: String,
    /// Its GPU instance.
    pub gpu_instance: u32,
    /// Its compute instance in that.
    pub compute_instance: u32,
    /// Its SMs, where told.
    pub sms: Option<u32>,
    /// Its memory in MiB, where told.
    pub memory_mib: Option<u64>,
}

/// Calls a function of the library if it has it; the wrapper's own methods would panic where it does not.
macro_rules! call {
    ($device:expr, $what:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $device.nvml.inner.lib().$function.as_ref() {
            Err(_) => Err(NvmlError::NotSupported { what: $what }),
            // SAFETY: the function has this signature in nvml.h and the library stays loaded as long as `nvml`; each
            // use says why its arguments are valid.
            Ok(function) => nvml_try(unsafe { function($($argument),*) }).map_err(named($what)),
        }
    };
}

impl Device {
    /// MIG mode; `None` where the GPU has no MIG.
    ///
    /// # Errors
    /// When NVML fails to tell.
    pub fn mig_mode(&self) -> Result<Option<MigMode>, NvmlError> {
        match self.ask("MIG mode", |device| device.mig_mode()) {
            Ok(mode) => {
                Ok(Some(MigMode { enabled: mode.current == 1, enabled_after_reset: mode.pending == 1 }))
            }
            Err(error) if error.is_not_supported() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The instances that programs can use. In a container, those that were handed to it.
    ///
    /// # Errors
    /// When NVML fails to tell.
    pub fn mig_instances(&self) -> Result<Vec<Instance>, NvmlError> {
        let what = "MIG instances";
        let parent = self.raw(what)?;
        let most = match parent.mig_device_count() {
            Ok(most) => most,
            Err(Raw::NotSupported | Raw::FailedToLoadSymbol(_)) => 0,
            Err(error) => return Err(named(what)(error)),
        };
        let mut instances = Vec::new();
        for index in 0..most {
            match parent.mig_device_by_index(index) {
                Ok(device) => instances.push(self.instance(&device)?),
                // Holes between instances, and mode off.
                Err(Raw::NotFound | Raw::InvalidArg | Raw::NotSupported) => {}
                Err(error) => return Err(named(what)(error)),
            }
        }
        Ok(instances)
    }

    fn instance(&self, device: &nvml_wrapper::Device<'_>) -> Result<Instance, NvmlError> {
        let what = "MIG instance";
        let (mut gpu_instance, mut compute_instance) = (0, 0);
        // SAFETY: only read, and only while `device` lives.
        let handle = unsafe { device.handle() };
        // Both take a live handle and a valid place for a number.
        call!(self, what, nvmlDeviceGetGpuInstanceId(handle, &mut gpu_instance))?;
        call!(self, what, nvmlDeviceGetComputeInstanceId(handle, &mut compute_instance))?;
        let attributes = device.attributes().ok();
        Ok(Instance {
            uuid: device.uuid().map_err(named(what))?,
            profile: device.name().map(|name| profile_of(&name).to_owned()).map_err(named(what))?,
            gpu_instance,
            compute_instance,
            sms: attributes.as_ref().map(|attributes| attributes.multiprocessor_count),
            memory_mib: attributes.map(|attributes| attributes.memory_size_mb),
        })
    }

    /// The kinds of GPU instance that this GPU offers; empty where it has no MIG.
    ///
    /// # Errors
    /// When NVML fails to tell.
    pub fn mig_profiles(&self) -> Result<Vec<Profile>, NvmlError> {
        let mut profiles = Vec::new();
        for number in 0..sys::NVML_GPU_INSTANCE_PROFILE_COUNT {
            match self.profile(number) {
                Ok(mut profile) => {
                    profile.placements = self.placements(profile.id).unwrap_or_default();
                    profiles.push(profile);
                }
                Err(NvmlError::NotSupported { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(profiles)
    }

    fn profile(&self, number: u32) -> Result<Profile, NvmlError> {
        let what = "MIG profile";
        let parent = self.raw(what)?;
        // SAFETY: all fields are integers and bytes, for which zero is a value.
        let mut info: sys::nvmlGpuInstanceProfileInfo_v2_t = unsafe { MaybeUninit::zeroed().assume_init() };
        info.version = version_2::<sys::nvmlGpuInstanceProfileInfo_v2_t>();
        // SAFETY: only read, and only while `parent` lives.
        let handle = unsafe { parent.handle() };
        // A live handle and a structure that says its size.
        match call!(self, what, nvmlDeviceGetGpuInstanceProfileInfoV(handle, number, &mut info)) {
            Ok(()) => Ok(Profile {
                id: info.id,
                name: text(&info.name).map(|name| profile_of(&name).to_owned()),
                instances: info.instanceCount,
                sms: info.multiprocessorCount,
                memory_mib: info.memorySizeMB,
                copy_engines: info.copyEngineCount,
                placements: Vec::new(),
            }),
            // Drivers older than the second version of the structure, and profiles that this GPU has not.
            Err(NvmlError::NotSupported { .. } | NvmlError::Call { .. }) => {
                let info = parent.profile_info(number).map_err(|raw| match raw {
                    Raw::InvalidArg => NvmlError::NotSupported { what },
                    other => named(what)(other),
                })?;
                Ok(Profile {
                    id: info.id,
                    name: None,
                    instances: info.instance_count,
                    sms: info.multiprocessor_count,
                    memory_mib: info.memory_size_mb,
                    copy_engines: info.copy_engine_count,
                    placements: Vec::new(),
                })
            }
            Err(error) => Err(error),
        }
    }

    /// Where an instance of a profile may lie. (The wrapper's own `possible_placements` always answers with none.)
    fn placements(&self, profile: u32) -> Result<Vec<Placement>, NvmlError> {
        let what = "MIG placements";
        let parent = self.raw(what)?;
        // SAFETY: only read, and only while `parent` lives.
        let handle = unsafe { parent.handle() };
        let mut count = 0;
        // Without a buffer the function writes the number alone.
        call!(
            self,
            what,
            nvmlDeviceGetGpuInstancePossiblePlacements_v2(handle, profile, std::ptr::null_mut(), &mut count)
        )?;
        let room = sys::nvmlGpuInstancePlacement_t { start: 0, size: 0 };
        let mut placements = vec![room; count as usize];
        // The buffer has room for `count`.
        call!(
            self,
            what,
            nvmlDeviceGetGpuInstancePossiblePlacements_v2(
                handle,
                profile,
                placements.as_mut_ptr(),
                &mut count
            )
        )?;
        placements.truncate(count as usize);
        Ok(placements.into_iter().map(|place| Placement { start: place.start, size: place.size }).collect())
    }

    /// Creates a GPU instance of a profile and one compute instance that fills it; at `placement`, or where the driver
    /// finds room. Gives back the id of the GPU instance. Nothing is left behind when the second step fails.
    ///
    /// # Errors
    /// [`NvmlError::NoPermission`] without root; others where MIG is off or there is no room.
    pub fn create_mig_instance(
        &self,
        _consent: &ChangesGpu,
        profile: u32,
        placement: Option<Placement>,
    ) -> Result<u32, NvmlError> {
        let what = "create MIG instance";
        let parent = self.raw(what)?;
        // SAFETY: only read, and only while `parent` lives.
        let handle = unsafe { parent.handle() };
        let mut instance: sys::nvmlGpuInstance_t = std::ptr::null_mut();
        // A live handle, and valid places for what is read and written.
        match placement {
            Some(Placement { start, size }) => {
                let place = sys::nvmlGpuInstancePlacement_t { start, size };
                call!(
                    self,
                    what,
                    nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile, &place, &mut instance)
                )?;
            }
            None => call!(self, what, nvmlDeviceCreateGpuInstance(handle, profile, &mut instance))?,
        }
        let made = self.fill(instance);
        if made.is_err() {
            // The error that led here is the one to report.
            let _ = call!(self, what, nvmlGpuInstanceDestroy(instance));
        }
        made
    }

    /// The largest compute instance in a new GPU instance; gives back the id of the latter.
    fn fill(&self, instance: sys::nvmlGpuInstance_t) -> Result<u32, NvmlError> {
        let what = "create MIG compute instance";
        // SAFETY: all fields are integers and a pointer, for which zero is a value.
        let mut about: sys::nvmlGpuInstanceInfo_t = unsafe { MaybeUninit::zeroed().assume_init() };
        // The instance was just created or found; `about` is written to.
        call!(self, what, nvmlGpuInstanceGetInfo(instance, &mut about))?;
        let mut largest: Option<sys::nvmlComputeInstanceProfileInfo_t> = None;
        for number in 0..sys::NVML_COMPUTE_INSTANCE_PROFILE_COUNT {
            // SAFETY: all fields are integers, for which zero is a value.
            let mut info: sys::nvmlComputeInstanceProfileInfo_t =
                unsafe { MaybeUninit::zeroed().assume_init() };
            let engines = sys::NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED;
            // As above; profiles that do not fit answer with an error.
            let answer = call!(
                self,
                what,
                nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, engines, &mut info)
            );
            let larger = largest.is_none_or(|sofar| info.multiprocessorCount > sofar.multiprocessorCount);
            if answer.is_ok() && larger {
                largest = Some(info);
            }
        }
        let Some(largest) = largest else {
            return Err(NvmlError::Call { what, reason: "the instance offers no profile".to_owned() });
        };
        let mut compute: sys::nvmlComputeInstance_t = std::ptr::null_mut();
        // As above.
        call!(self, what, nvmlGpuInstanceCreateComputeInstance(instance, largest.id, &mut compute))?;
        Ok(about.id)
    }

    /// Destroys a GPU instance and the compute instances in it. Programs that use it must have ended.
    ///
    /// # Errors
    /// [`NvmlError::NoPermission`] without root; others where there is none with this id or it is in use.
    pub fn destroy_mig_instance(&self, _consent: &ChangesGpu, gpu_instance: u32) -> Result<(), NvmlError> {
        let what = "destroy MIG instance";
        let parent = self.raw(what)?;
        // SAFETY: only read, and only while `parent` lives.
        let handle = unsafe { parent.handle() };
        let mut instance: sys::nvmlGpuInstance_t = std::ptr::null_mut();
        // A live handle and a valid place for what is found.
        call!(self, what, nvmlDeviceGetGpuInstanceById(handle, gpu_instance, &mut instance))?;
        for one in self.mig_instances()?.iter().filter(|one| one.gpu_instance == gpu_instance) {
            let mut compute: sys::nvmlComputeInstance_t = std::ptr::null_mut();
            // The instance was just found; its compute instance is looked up before it is destroyed.
            call!(
                self,
                what,
                nvmlGpuInstanceGetComputeInstanceById(instance, one.compute_instance, &mut compute)
            )?;
            call!(self, what, nvmlComputeInstanceDestroy(compute))?;
        }
        call!(self, what, nvmlGpuInstanceDestroy(instance))
    }
}

/// What NVML wants in the `version` of a structure's second version: its size, and 2 in the top byte.
fn version_2<T>() -> u32 {
    // NVML's structures have some hundred bytes.
    size_of::<T>() as u32 | (2 << 24)
}

/// The text in a C buffer, if it ends in it and is not empty.
fn text(buffer: &[c_char]) -> Option<String> {
    let bytes: Vec<u8> = buffer.iter().map(|&c| c as u8).collect();
    let text = CStr::from_bytes_until_nul(&bytes).ok()?.to_string_lossy().into_owned();
    (!text.is_empty()).then_some(text)
}

/// `3g.71gb` of `NVIDIA H200 MIG 3g.71gb` and of `MIG 3g.71gb`.
fn profile_of(name: &str) -> &str {
    name.rsplit_once("MIG ").map_or(name, |(_, profile)| profile).trim()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_profile_is_the_end_of_a_name() {
        let cases = [
            ("NVIDIA H200 MIG 3g.71gb", "3g.71gb"),
            ("MIG 1g.18gb+me", "1g.18gb+me"),
            ("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", "1c.3g.20gb"),
            ("NVIDIA H200", "NVIDIA H200"),
            ("", ""),
        ];
        for (name, expected) in cases {
            assert_eq!(profile_of(name), expected);
        }
    }

    #[test]
    fn structures_say_their_version_and_size() {
        // From nvml.h: eleven 32-bit fields, padding, a 64-bit one, a name of 96 bytes.
        assert_eq!(version_2::<sys::nvmlGpuInstanceProfileInfo_v2_t>(), (2 << 24) | 152);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_buffer_is_a_text_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..12)) {
            let buffer: Vec<c_char> = bytes.iter().map(|&byte| byte as c_char).collect();
            let end = bytes.iter().position(|&byte| byte == 0);
            let found = text(&buffer);
            prop_assert_eq!(found.is_some(), end.is_some_and(|end| end > 0));
        }
    }
}
