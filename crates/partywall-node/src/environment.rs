//! What a tenant's processes find in their environment.
//!
//! The shim stands in front of whatever is preloaded already, so that its symbols are found first. Everything else is
//! the environment of whoever started the tenant.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use partywall_shim_api::environment::{SOCKET, TOKEN};

use crate::error::Error;
use crate::tenant::Token;

/// What the dynamic linker loads first.
pub const PRELOAD: &str = "LD_PRELOAD";

/// What every tenant of a node gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wall {
    shim: String,
    socket: String,
}

impl Wall {
    /// The shim's library and the socket on which the node waits for tenants' processes.
    ///
    /// # Errors
    /// When there is no such library, or its path cannot be preloaded: a tenant is never started without a wall.
    pub fn new(shim: &Path, socket: PathBuf) -> Result<Self, Error> {
        let unusable = |what: &str| {
            let shim = shim.display();
            Error::Refused(format!("{shim} {what}; tenants are not started without it"))
        };
        let text = shim.to_str().ok_or_else(|| unusable("is not UTF-8 text and cannot be preloaded"))?;
        if text.contains([':', ' ']) {
            return Err(unusable("has a colon or a space in its path and cannot be preloaded"));
        }
        if !shim.is_absolute() {
            return Err(unusable("is no absolute path, and tenants start elsewhere"));
        }
        if !shim.is_file() {
            return Err(unusable("is not there; it is the library that stands between tenants and the GPU"));
        }
        let socket = socket.into_os_string().into_string();
        let socket = socket.map_err(|_| Error::Refused("the node's folder is not UTF-8 text".to_owned()))?;
        Ok(Self { shim: text.to_owned(), socket })
    }

    /// The variables that are set for a tenant with this token; `preloaded` is what its LD_PRELOAD would be without.
    pub fn variables(&self, token: &Token, preloaded: Option<&str>) -> BTreeMap<String, String> {
        let preload = match preloaded {
            Some(others) if !others.is_empty() => format!("{}:{others}", self.shim),
            _ => self.shim.clone(),
        };
        let variables = [(PRELOAD, preload), (SOCKET, self.socket.clone()), (TOKEN, token.to_string())];
        variables.map(|(name, value)| (name.to_owned(), value)).into()
    }

    /// The whole environment of a tenant: that of whoever started it, what its configuration sets, and the wall.
    pub fn environment(
        &self,
        token: &Token,
        base: &BTreeMap<String, String>,
        set: &BTreeMap<String, String>,
    ) -> BTreeMap<String, String> {
        let mut environment = base.clone();
        environment.extend(set.clone());
        let preloaded = environment.get(PRELOAD).cloned();
        environment.extend(self.variables(token, preloaded.as_deref()));
        environment
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(variables: &[(&str, &str)]) -> BTreeMap<String, String> {
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_shim_comes_first_and_the_configuration_over_the_environment() {
        let file = tempfile::Builder::new().suffix(".so").tempfile().unwrap();
        let wall = Wall::new(file.path(), PathBuf::from("tenants.sock")).unwrap();
        let shim = file.path().to_str().unwrap();
        let token = Token::from_bytes([0xab; 16]);
        let base = map(&[("PATH", "a"), ("LD_PRELOAD", "x.so"), (TOKEN, "another"), ("KEEP", "1")]);
        let found = wall.environment(&token, &base, &map(&[("PATH", "b")]));
        assert_eq!(found[PRELOAD], format!("{shim}:x.so"));
        assert_eq!((&found["PATH"][..], &found["KEEP"][..], &found[SOCKET][..]), ("b", "1", "tenants.sock"));
        assert_eq!(found[TOKEN], "ab".repeat(16));
        let found = wall.environment(&token, &base, &map(&[("LD_PRELOAD", "")]));
        assert_eq!(found[PRELOAD], shim);
    }

    #[test]
    fn a_shim_that_cannot_be_preloaded_is_refused() {
        for (path, why) in [
            ("/nowhere/libpartywall_shim.so", "is not there"),
            ("libpartywall_shim.so", "no absolute path"),
            ("/a b/shim.so", "colon or a space"),
        ] {
            let error = Wall::new(Path::new(path), PathBuf::new()).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("not started without it"), "{error}");
        }
    }
}
