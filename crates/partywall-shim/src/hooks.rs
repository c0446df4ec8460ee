//! The table of hooks: the functions of the driver at which the library has something to do.

use std::ffi::{CStr, c_void};

use crate::{code, copies, launch, memory, process, resolve, sms};

/// A function that stands in for one of the driver.
#[derive(Debug)]
pub(crate) struct Hook {
    /// The export that it stands in for, the whole name: `cuMemcpyHtoD_v2_ptds`.
    pub(crate) name: &'static CStr,
    /// An `extern "C"` function with exactly the prototype of that export.
    pub(crate) function: *const c_void,
}

// SAFETY: a name and the address of a function, neither of which ever changes.
unsafe impl Sync for Hook {}

/// Makes a list of hooks of functions that are called like the exports that they stand in for.
macro_rules! hooks {
    ($($function:ident),* $(,)?) => {
        &[$($crate::hooks::Hook {
            // SAFETY: an identifier holds no zero byte, and one follows it.
            name: unsafe {
                ::std::ffi::CStr::from_bytes_with_nul_unchecked(concat!(stringify!($function), "\0").as_bytes())
            },
            function: $function as *const ::std::ffi::c_void,
        }),*]
    };
}
pub(crate) use hooks;

/// All hooks, by area. An area has its lists in the module that does its work.
static AREAS: &[&[&[Hook]]] = &[
    &[
        process::HOOKS,
        resolve::HOOKS,
        launch::HOOKS,
        launch::busy::HOOKS,
        launch::changes::HOOKS,
        launch::unloading::HOOKS,
        launch::within::HOOKS,
        copies::HOOKS,
        sms::HOOKS,
        code::HOOKS,
    ],
    memory::HOOKS,
];

/// All of them, one by one.
fn all() -> impl Iterator<Item = &'static Hook> {
    AREAS.iter().copied().flatten().copied().flatten()
}

/// The hook that stands in for an export.
pub(crate) fn find(name: &CStr) -> Option<&'static Hook> {
    all().find(|hook| hook.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::ptr;

    use partywall_shim_api::coverage::entry;
    use partywall_shim_api::driver_api;

    use super::*;
    use crate::forwarders::index_of;

    #[test]
    fn every_hook_stands_in_for_one_export() {
        let mut seen = BTreeSet::new();
        for hook in all() {
            assert!(index_of(hook.name).is_some(), "{:?} is no export of libcuda", hook.name);
            assert!(seen.insert(hook.name), "two hooks for {:?}", hook.name);
            assert!(ptr::eq(find(hook.name).unwrap(), hook));
        }
        assert!(find(c"cuArrayCreate_v3").is_none());
    }

    fn is_hooked(name: &str) -> bool {
        all().any(|hook| hook.name.to_str() == Ok(name))
    }

    /// A panic in a hook must not run through the program's own frames: the process ends there, with the panic's message.
    #[test]
    fn a_panic_does_not_leave_a_hook() {
        const AGAIN: &str = "PARTYWALL_TEST_PANIC_IN_A_HOOK";
        extern "C" fn hook() -> u32 {
            panic!("this is a test");
        }
        if crate::process::variable(AGAIN).is_some() {
            let left = std::panic::catch_unwind(|| hook());
            println!("the panic has left the hook: {left:?}");
            return;
        }
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "--nocapture", "hooks::tests::a_panic_does_not_leave_a_hook"]).env(AGAIN, "1");
        let output = again.output().unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("this is a test") && said.contains("cannot unwind"), "{said}");
    }

    /// The table of treatments promises neither more than the hooks do, nor less.
    #[test]
    fn what_is_said_to_be_watched_has_a_hook_and_nothing_else() {
        for function in driver_api::cuda() {
            let name = function.name;
            let is_watched = entry(name).is_some_and(|(_, rule)| rule.is_watched);
            assert_eq!(is_watched, is_hooked(name), "{name}: watched, and has a hook");
        }
    }
}
