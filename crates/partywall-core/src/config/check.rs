//! What types cannot say about a configuration: each rule with the place it is broken at and what would be
//! right.

use std::ops::Range;

use super::{Config, MAX_NAME_CHARS, MAX_WEIGHT, TenantConfig, example, is_name_byte};
use crate::diagnostic::{Diagnostic, Findings, Step, position, quoted};
use crate::tenant::{Class, Share};
use crate::units::{Bytes, Nanos, SmCount};

/// The first list where a table belongs, which the reader would take for the table's values in order.
pub(super) fn list_for_table(text: &str, file: &str) -> Option<Diagnostic> {
    let findings = Findings::new(text, file, example)?;
    let places = findings.places();
    let tenants = (0..places.list_len(&[Step::Key("tenant")])).flat_map(|index| {
        let table = |name| (name, in_tenant(index, &[Step::Key(name)]));
        [("tenant", in_tenant(index, &[])), table("slo"), table("baseline")]
    });
    let tables = [("gpu", vec![Step::Key("gpu")])].into_iter().chain(tenants);
    findings.list_for_table(tables)
}

/// What is wrong with `config`, which was read from `text`, in the order of the file.
pub(super) fn check(config: &Config, text: &str, file: &str) -> Vec<Diagnostic> {
    // It was read, so it is TOML.
    let Some(found) = Findings::new(text, file, example) else { return Vec::new() };
    let mut checker = Checker { found };
    if config.tenants.is_empty() {
        let span = checker.found.places().value(&[Step::Key("tenant")]);
        let help = "write a table [[tenant]] for each tenant".to_owned();
        checker.found.report(span, "there is no tenant".to_owned(), help);
    }
    for (index, tenant) in config.tenants.iter().enumerate() {
        checker.name(index, tenant, &config.tenants[..index]);
        checker.command(index, tenant);
        checker.resources(index, tenant);
        checker.promise(index, tenant);
        checker.environment(index, tenant);
    }
    checker.found.into_diagnostics()
}

struct Checker<'t> {
    found: Findings<'t>,
}

impl Checker<'_> {
    /// About the value at `path` in the tenant at `index`.
    fn report_value(&mut self, index: usize, path: &[Step<'_>], message: String) {
        self.found.report_value(&in_tenant(index, path), message);
    }

    fn place(&self, index: usize, path: &[Step<'_>]) -> Range<usize> {
        self.found.places().value(&in_tenant(index, path))
    }

    fn name(&mut self, index: usize, tenant: &TenantConfig, before: &[TenantConfig]) {
        let path = [Step::Key("name")];
        let name = &tenant.name;
        let ends = [name.bytes().next(), name.bytes().last()];
        if name.is_empty() {
            self.report_value(index, &path, "the name is empty".to_owned());
        } else if !name.bytes().all(is_name_byte) || ends.contains(&Some(b'-')) {
            let message = format!("{} is no name of a tenant", quoted(name));
            let help =
                "use lower-case letters, digits and hyphens, a letter or digit first and last".to_owned();
            self.found.report(self.place(index, &path), message, help);
        } else if name.len() > MAX_NAME_CHARS {
            let message = format!("the name has {} characters", name.len());
            self.found.report(self.place(index, &path), message, format!("use at most {MAX_NAME_CHARS}"));
        } else if let Some(first) = before.iter().position(|other| other.name == *name) {
            let there = position(self.found.text(), self.place(first, &path).start);
            let message = format!("a second tenant is named {}; the first is at {there}", quoted(name));
            self.found.report(self.place(index, &path), message, "give each tenant its own name".to_owned());
        }
    }

    fn command(&mut self, index: usize, tenant: &TenantConfig) {
        let path = [Step::Key("command")];
        match tenant.command.first() {
            None => self.report_value(index, &path, "the command is empty".to_owned()),
            Some(program) if program.is_empty() => {
                let path = [Step::Key("command"), Step::Index(0)];
                self.report_value(index, &path, "the program to run is empty".to_owned());
            }
            Some(_) => {}
        }
        if let Some(word) = tenant.command.iter().position(|word| word.contains('\0')) {
            let message = "a command cannot hold the character NUL".to_owned();
            self.found.report(
                self.place(index, &[path[0], Step::Index(word)]),
                message,
                "remove `\\u0000`".to_owned(),
            );
        }
    }

    fn resources(&mut self, index: usize, tenant: &TenantConfig) {
        if tenant.memory == Bytes::ZERO {
            let message = "a tenant without GPU memory cannot run".to_owned();
            self.report_value(index, &[Step::Key("memory")], message);
        }
        for (key, share) in [("share", tenant.share), ("squeezed", tenant.squeezed)] {
            self.share(index, key, share);
        }
        if tenant.squeezed.is_some() && tenant.class == Class::LatencySensitive {
            let span = self.found.places().key(&in_tenant(index, &[Step::Key("squeezed")]));
            let message = "a latency-sensitive tenant is never squeezed".to_owned();
            let help = "remove it, or write class = \"best-effort\"".to_owned();
            self.found.report(span, message, help);
        }
        if let Some(weight) = tenant.weight.filter(|weight| !(1..=MAX_WEIGHT).contains(weight)) {
            self.report_value(index, &[Step::Key("weight")], format!("the weight {weight} is out of range"));
        }
    }

    fn share(&mut self, index: usize, key: &str, share: Option<Share>) {
        match share {
            Some(Share::Sms(SmCount(0))) => {
                let path = [Step::Key(key), Step::Key("sms")];
                self.report_value(index, &path, "a tenant without SMs cannot run".to_owned());
            }
            Some(Share::Percent(percent)) if !(1..=100).contains(&percent) => {
                let path = [Step::Key(key), Step::Key("percent")];
                self.report_value(index, &path, format!("{percent} is no percentage of the SMs"));
            }
            _ => {}
        }
    }

    fn promise(&mut self, index: usize, tenant: &TenantConfig) {
        let given = [("slo", tenant.slo.is_some()), ("baseline", tenant.baseline.p99.is_some())];
        if tenant.class == Class::BestEffort {
            for (key, _) in given.into_iter().filter(|(_, given)| *given) {
                // Reported at the key: `slo.p99 = "5ms"` has no table of its own to point at.
                let span = self.found.places().key(&in_tenant(index, &[Step::Key(key)]));
                let message = "a best-effort tenant takes what is left and is promised nothing".to_owned();
                let help = format!("remove the {key}, or write class = \"latency-sensitive\"");
                self.found.report(span, message, help);
            }
            return;
        }
        if let Some((key, message)) = tenant.slo.problem() {
            self.report_value(index, &[Step::Key("slo"), Step::Key(key)], message);
        }
        if tenant.baseline.p99 == Some(Nanos::ZERO) {
            let span = self.place(index, &[Step::Key("baseline"), Step::Key("p99")]);
            let message = "no request completes within no time".to_owned();
            self.found.report(span, message, "write baseline.p99 = \"1.1ms\"".to_owned());
        }
    }

    fn environment(&mut self, index: usize, tenant: &TenantConfig) {
        for (name, value) in &tenant.env {
            let path = [Step::Key("env"), Step::Key(name)];
            if name.is_empty() || name.contains(['=', '\0']) {
                let span = self.found.places().key(&in_tenant(index, &path));
                let message = format!("{} is no name of an environment variable", quoted(name));
                self.found.report(span, message, "use letters, digits and underscores".to_owned());
            } else if value.contains('\0') {
                let message = "an environment variable cannot hold the character NUL".to_owned();
                self.found.report(self.place(index, &path), message, "remove `\\u0000`".to_owned());
            }
        }
    }
}

fn in_tenant<'p>(index: usize, path: &[Step<'p>]) -> Vec<Step<'p>> {
    [&[Step::Key("tenant"), Step::Index(index)], path].concat()
}
