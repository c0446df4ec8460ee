//! Modules and libraries: loading code. A library is a module here, and its kernels are functions.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

use crate::abi::{In, Out, Text, put_text};
use crate::api::ready;
use crate::code::{self, Module};
use crate::error::Code;
use crate::process::Process;

/// `CU_JIT_ERROR_LOG_BUFFER` and `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
const LOG: u32 = 5;
const LOG_BYTES: u32 = 6;

api! {
    fn cuModuleLoad(place: Out<u64>, path: Text) {
        place.set(from_file(&path.get()?)?)
    }

    fn cuModuleLoadData(place: Out<u64>, image: *const c_void) {
        place.set(load(image, None)?)
    }

    fn cuModuleLoadDataEx(
        place: Out<u64>, image: *const c_void, count: u32, options: In<u32>, values: In<u64>,
    ) {
        let count = count as usize;
        let (options, values) = if count == 0 { (vec![], vec![]) } else { (options.list(count)?, values.list(count)?) };
        let value = |wanted| options.iter().position(|option| *option == wanted).map(|at| values[at]);
        let log = value(LOG).zip(value(LOG_BYTES));
        place.set(load(image, log)?)
    }

    fn cuModuleLoadFatBinary(place: Out<u64>, image: *const c_void) {
        place.set(load(image, None)?)
    }

    fn cuModuleUnload(handle: u64) {
        unload(handle)
    }

    fn cuModuleGetLoadingMode(mode: Out<u32>) {
        ready()?;
        // Eager.
        mode.set(1)
    }

    fn cuModuleGetFunction(place: Out<u64>, module: u64, name: Text) {
        let module = ready()?.objects.modules.get(module)?;
        place.set(module.function(&name.get()?)?.handle)
    }

    fn cuModuleGetFunctionCount(count: Out<u32>, module: u64) {
        count.set(ready()?.objects.modules.get(module)?.functions.len() as u32)
    }

    fn cuModuleEnumerateFunctions(places: Out<u64>, room: u32, module: u64) {
        enumerate(places, room, module)
    }

    fn cuModuleGetGlobal_v2(address: Out<u64>, bytes: Out<usize>, module: u64, name: Text) {
        global(address, bytes, module, name)
    }

    fn cuLibraryLoadData(
        place: Out<u64>, image: *const c_void, _options: u64, _values: u64, _count: u32, _library: u64, _of_it: u64, _many: u32,
    ) {
        place.set(load(image, None)?)
    }

    fn cuLibraryLoadFromFile(
        place: Out<u64>, path: Text, _options: u64, _values: u64, _count: u32, _library: u64, _of_it: u64, _many: u32,
    ) {
        place.set(from_file(&path.get()?)?)
    }

    fn cuLibraryUnload(handle: u64) {
        unload(handle)
    }

    fn cuLibraryGetKernel(place: Out<u64>, library: u64, name: Text) {
        let module = ready()?.objects.modules.get(library)?;
        place.set(module.function(&name.get()?)?.handle)
    }

    fn cuLibraryGetKernelCount(count: Out<u32>, library: u64) {
        count.set(ready()?.objects.modules.get(library)?.functions.len() as u32)
    }

    fn cuLibraryEnumerateKernels(places: Out<u64>, room: u32, library: u64) {
        enumerate(places, room, library)
    }

    fn cuLibraryGetModule(place: Out<u64>, library: u64) {
        place.set(ready()?.objects.modules.get(library)?.handle)
    }

    fn cuLibraryGetGlobal(address: Out<u64>, bytes: Out<usize>, library: u64, name: Text) {
        global(address, bytes, library, name)
    }

    fn cuKernelGetFunction(place: Out<u64>, kernel: u64) {
        place.set(ready()?.objects.functions.get(kernel)?.handle)
    }

    fn cuKernelGetLibrary(place: Out<u64>, kernel: u64) {
        place.set(module_of(kernel)?.handle)
    }

    fn cuFuncGetModule(place: Out<u64>, function: u64) {
        place.set(module_of(function)?.handle)
    }

    fn cuKernelGetName(place: Out<*const c_char>, kernel: u64) {
        place.set(ready()?.objects.functions.get(kernel)?.name.as_ptr())
    }

    fn cuFuncGetName(place: Out<*const c_char>, function: u64) {
        place.set(ready()?.objects.functions.get(function)?.name.as_ptr())
    }
}

/// Loads what is at an address: text up to its zero byte, or something that begins as compiled code does.
fn load(image: *const c_void, log: Option<(u64, u64)>) -> Result<u64, Code> {
    let process = ready()?;
    if image.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller passes an image: either text that ends with a zero byte, or compiled code, whose header has a zero
    // byte within its first words.
    let bytes = unsafe { CStr::from_ptr(image.cast()) }.to_bytes();
    add(process, bytes, log)
}

fn from_file(path: &str) -> Result<u64, Code> {
    let process = ready()?;
    add(process, &std::fs::read(path).map_err(|_| Code::FILE_NOT_FOUND)?, None)
}

fn add(process: &Process, image: &[u8], log: Option<(u64, u64)>) -> Result<u64, Code> {
    process.current()?;
    let module = code::load(image).map_err(|code::Refused(code, why)| {
        match log {
            Some((address, room)) => {
                let place = Out::from_address(address);
                // A log without room is no log.
                let _ = put_text(&why, place, usize::try_from(room).unwrap_or(0));
            }
            None => {
                crate::process::say(&why.trim_start_matches("softgpu: "), code);
            }
        }
        code
    })?;
    for function in &module.functions {
        process.objects.functions.put(function.handle, Arc::clone(function));
    }
    let handle = module.handle;
    process.objects.modules.put(handle, module);
    Ok(handle)
}

fn unload(handle: u64) -> Result<(), Code> {
    let process = ready()?;
    let module = process.objects.modules.remove(handle)?;
    for function in &module.functions {
        let _ = process.objects.functions.remove(function.handle);
    }
    let variables =
        std::mem::take(&mut *module.variables.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    for address in variables.into_iter().filter_map(|(.., address)| address) {
        let _ = process.memory.free(address);
    }
    Ok(())
}

fn module_of(function: u64) -> Result<Arc<Module>, Code> {
    ready()?.objects.functions.get(function)?.module.upgrade().ok_or(Code::INVALID_HANDLE)
}

fn enumerate(places: Out<u64>, room: u32, module: u64) -> Result<(), Code> {
    let module = ready()?.objects.modules.get(module)?;
    let functions = module.functions.iter().take(room as usize).enumerate();
    functions.into_iter().try_for_each(|(index, function)| places.at(index).set(function.handle))
}

fn global(address: Out<u64>, bytes: Out<usize>, module: u64, name: Text) -> Result<(), Code> {
    let process = ready()?;
    let context = process.current()?.handle;
    let module = process.objects.modules.get(module)?;
    let (at, size) = module.variable(&name.get()?, |bytes| process.memory.allocate(bytes, false, context))?;
    address.offer(at);
    bytes.offer(size as usize);
    Ok(())
}
