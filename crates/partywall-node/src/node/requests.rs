//! What the node does about each request of [`crate::control`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use partywall_core::config::{MAX_WEIGHT, Restart, TenantConfig, WallChoice, is_tenant_name};
use partywall_core::diagnostic::{nearest, quoted};
use partywall_core::restart::BackOff;
use partywall_core::tenant::{Baseline, Class, Share, Slo, TenantId};
use partywall_core::units::{Bytes, Nanos};

use super::{Closing, Lifetime, Node};
use crate::clock;
use crate::connection::{Connection, Waiting};
use crate::control::{Attach, Reply, Request, TenantReport};
use crate::error::Error;
use crate::process::Identity;
use crate::shepherd::Orders;
use crate::state::Kept;
use crate::supervise::Tenant;
use crate::tenant::{MAX_TENANTS, Place, TenantSpec, Token, default_weight};
use crate::walls;

/// What the tenants of one [`Request::Up`] have in common.
struct Common<'r> {
    env: &'r BTreeMap<String, String>,
    directory: &'r Path,
    grace: Nanos,
}

/// What a tenant that is about to be put behind the wall says of itself.
#[derive(Debug, Clone, Copy)]
struct Asked<'a> {
    /// For messages.
    name: &'a str,
    class: Class,
    share: Option<Share>,
    squeezed: Option<Share>,
}

impl Node<'_> {
    /// Does what `request` says, and answers, or notes what the answer waits for.
    pub(super) fn answer(&mut self, request: Request, connection: &mut Connection) {
        if self.closing.is_some() && matches!(request, Request::Up { .. } | Request::Attach(_)) {
            connection.reply(&Reply::Refused { message: "the node is ending".to_owned() });
            return;
        }
        let reply = match request {
            Request::Gpu => Ok(Some(Reply::Gpu { simulated: self.settings.simulated.clone() })),
            Request::Ps => Ok(Some(Reply::Tenants { tenants: self.reports(&[], clock::now()) })),
            Request::Wall => Ok(Some(Reply::Wall { wall: self.walls.choice() })),
            Request::Up { tenants, wall, env, directory, grace } => {
                let common = Common { env: &env, directory: &directory, grace };
                let wall = Some(wall).filter(|wall| *wall != WallChoice::Auto);
                self.has_wall(wall)
                    .and_then(|()| self.up(&tenants, &common))
                    .map(|(names, new)| self.once_proven(Reply::Done { names }, new, true, connection))
            }
            Request::Attach(asked) => self
                .attach(asked, connection.peer)
                .map(|(reply, name)| self.once_proven(reply, vec![name], true, connection)),
            Request::Stop { names } => self.stop(&names).map(|names| {
                connection.waiting = Some(Waiting::Stopped(names));
                None
            }),
            Request::Restart { names } => self.restart(&names).map(|names| {
                self.once_proven(Reply::Done { names: names.clone() }, names, false, connection)
            }),
            Request::Wait { names } => self.named(&names).map(|names| {
                connection.waiting = Some(Waiting::Ended(names));
                None
            }),
            Request::Logs { name } => self.named(&[name]).map(|names| {
                let folder = names.first().map(|name| self.settings.folder.tenant(name));
                folder.map(|folder| Reply::Log { folder: folder.path().to_owned() })
            }),
            Request::Coverage { name } => self.coverage(&name).map(Some),
            Request::Shutdown { keep_tenants } => {
                if keep_tenants {
                    self.closing = Some(Closing::Now);
                } else {
                    self.end();
                }
                connection.waiting = Some(Waiting::Shutdown);
                Ok(None)
            }
        };
        match reply {
            Ok(None) => {}
            Ok(Some(reply)) => connection.reply(&reply),
            Err(error) => connection.reply(&Reply::Refused { message: error.to_string() }),
        }
    }

    /// How the tenants with these names are, or all of them; in the order in which they came.
    pub(super) fn reports(&self, names: &[String], now: Nanos) -> Vec<TenantReport> {
        let mut facts = self.service.snapshot();
        let mut facts = |id: TenantId| facts.remove(&id).unwrap_or_default();
        let asked = |tenant: &&Tenant| names.is_empty() || names.contains(&tenant.kept.spec.name);
        self.tenants
            .iter()
            .filter(asked)
            .map(|tenant| TenantReport {
                last_fault: self.recovery.report(tenant.kept.spec.id, now),
                ..tenant.report(self.walls.choice(), facts(tenant.kept.spec.id), now)
            })
            .collect()
    }

    /// Whether the node has the wall that is asked for.
    fn has_wall(&self, asked: Option<WallChoice>) -> Result<(), Error> {
        let has = self.walls.choice();
        match asked {
            Some(asked) if asked != has => {
                walls::check_built(asked)?;
                let folder = self.settings.folder.path().display();
                Err(Error::Refused(format!(
                    "the node in {folder} has the wall `{has}`, and a node has one wall, so `{asked}` cannot be had; end it first \
                     (`partywall stop --all`, Ctrl-C), or use another folder with --dir"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Adds tenants; the names of all of them, and of those that are new.
    fn up(
        &mut self,
        configs: &[TenantConfig],
        common: &Common<'_>,
    ) -> Result<(Vec<String>, Vec<String>), Error> {
        let mut new = Vec::new();
        let mut names = BTreeSet::new();
        for config in configs {
            check(&config.name, config.memory, config.weight, &config.command)?;
            check_promise(&config.name, config.class, config.slo, config.baseline)?;
            if !names.insert(&config.name) {
                return Err(Error::Refused(format!("two tenants are named {}", quoted(&config.name))));
            }
            match self.position(&config.name).map(|index| &self.tenants[index]) {
                Some(tenant) if tenant.activity().is_active() => {
                    let spec = &tenant.kept.spec;
                    let described = TenantSpec::from_config(config, spec.id, spec.token);
                    let place = Place { sms: spec.sms, squeezed: spec.squeezed_sms };
                    let same = described.placed(place) == *spec;
                    if !same || !tenant.kept.wanted {
                        return Err(Error::Refused(format!(
                            "a tenant named {} runs already, and not as described here; `partywall stop {}` first",
                            quoted(&config.name),
                            config.name
                        )));
                    }
                }
                _ => new.push(config),
            }
        }
        if self.tenants.len() + new.len() > MAX_TENANTS {
            return Err(Error::Refused(format!("a node keeps at most {MAX_TENANTS} tenants")));
        }
        for (done, config) in new.iter().enumerate() {
            if let Err(error) = self.add(config, common) {
                // All or none: the ones before it have not been started yet.
                self.forget(|tenant| new[..done].iter().any(|config| tenant.kept.spec.name == config.name));
                return Err(error);
            }
        }
        // Before the answer: what was promised outlives the node.
        self.save();
        let new = new.iter().map(|config| config.name.clone()).collect();
        Ok((configs.iter().map(|config| config.name.clone()).collect(), new))
    }

    /// Adds a tenant that is to be started now, in place of one of its name that has ended.
    fn add(&mut self, config: &TenantConfig, common: &Common<'_>) -> Result<(), Error> {
        let id = self.id();
        let asked =
            Asked { name: &config.name, class: config.class, share: config.share, squeezed: config.squeezed };
        self.placed(id, asked, |node, place| {
            node.add_placed(TenantSpec::from_config(config, id, token()?).placed(place), common)
        })
    }

    /// Gives a tenant its place behind the wall for `add`, and takes it back where that fails.
    fn placed<T>(
        &mut self,
        id: TenantId,
        asked: Asked<'_>,
        add: impl FnOnce(&mut Self, Place) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let place = self.place(id, asked)?;
        let added = add(self, place);
        if added.is_err() {
            self.walls.free(id);
        }
        added
    }

    /// A tenant's place behind the wall, which is its own from now on. Best-effort tenants that did not ask may be squeezed as the node says.
    fn place(&mut self, id: TenantId, asked: Asked<'_>) -> Result<Place, Error> {
        let Asked { name, class, share, squeezed } = asked;
        let sms = self.walls.place((id, name), class, share)?;
        let as_all = self.settings.squeezed.filter(|_| class == Class::BestEffort);
        let squeezed = self.walls.squeezed(name, sms, squeezed.or(as_all));
        let squeezed = squeezed.inspect_err(|_| self.walls.free(id))?;
        Ok(Place { sms, squeezed })
    }

    fn add_placed(&mut self, spec: TenantSpec, common: &Common<'_>) -> Result<(), Error> {
        let folder = self.settings.folder.tenant(&spec.name);
        folder.create()?;
        let mut env = self.wall.environment(&spec.token, common.env, &spec.env);
        env.extend(self.walls.variables(spec.class, spec.share));
        let orders = Orders {
            command: spec.command.clone(),
            env,
            directory: common.directory.to_owned(),
            grace: common.grace,
        };
        orders.write(&folder)?;
        let kept = kept(spec, common.grace, false);
        self.serve_tenant(Tenant::new(kept, folder, clock::now()))
    }

    /// Takes the tenant in, in place of one of its name.
    fn serve_tenant(&mut self, tenant: Tenant) -> Result<(), Error> {
        let spec = &tenant.kept.spec;
        self.forget(|old| old.kept.spec.name == spec.name);
        if self.service.add_tenant(spec).is_err() {
            // Those that have ended are kept to be looked at, but not at the cost of one that wants to run.
            self.forget(|old| !old.activity().is_active());
            let refused = |error| Error::Refused(format!("{}: {error}", spec.name));
            self.service.add_tenant(spec).map_err(refused)?;
        }
        self.tenants.push(tenant);
        Ok(())
    }

    /// Adds a tenant that the process which asks will start; its answer and the tenant's name.
    fn attach(&mut self, asked: Attach, peer: i32) -> Result<(Reply, String), Error> {
        self.has_wall(asked.wall)?;
        let id = self.id();
        let name = asked.name.clone().unwrap_or_else(|| format!("run-{}", id.0));
        // Without a limit, memory cannot be wrong.
        check(&name, asked.memory.unwrap_or(Bytes(1)), asked.weight, &asked.command)?;
        check_promise(&name, asked.class, asked.slo, asked.baseline)?;
        if self.position(&name).is_some_and(|index| self.tenants[index].activity().is_active()) {
            return Err(Error::Refused(format!(
                "a tenant named {} runs already; give another --name",
                quoted(&name)
            )));
        }
        if self.tenants.len() >= MAX_TENANTS {
            return Err(Error::Refused(format!("a node keeps at most {MAX_TENANTS} tenants")));
        }
        if asked.squeezed.is_some() && asked.class == Class::LatencySensitive {
            return Err(Error::Refused(format!("{name}: a latency-sensitive tenant is never squeezed")));
        }
        let wanted = Asked { name: &name, class: asked.class, share: asked.share, squeezed: asked.squeezed };
        self.placed(id, wanted, |node, place| {
            node.attach_placed((id, &name), place, asked, peer).map(|reply| (reply, name.clone()))
        })
    }

    fn attach_placed(
        &mut self,
        (id, name): (TenantId, &str),
        place: Place,
        asked: Attach,
        peer: i32,
    ) -> Result<Reply, Error> {
        let spec = TenantSpec {
            id,
            name: name.to_owned(),
            class: asked.class,
            memory: asked.memory,
            weight: asked.weight.unwrap_or_else(|| default_weight(asked.class)),
            command: asked.command,
            env: BTreeMap::new(),
            restart: Restart::Never,
            slo: asked.slo,
            baseline: asked.baseline,
            share: asked.share,
            sms: place.sms,
            squeezed: asked.squeezed,
            squeezed_sms: place.squeezed,
            token: token()?,
        };
        let mut variables = self.wall.variables(&spec.token, asked.preload.as_deref());
        variables.extend(self.walls.variables(spec.class, spec.share));
        let folder = self.settings.folder.tenant(name);
        folder.create()?;
        let path = folder.path().to_owned();
        let gone = || Error::Refused("the process that asked is gone".to_owned());
        let shepherd = Identity::of(peer).ok_or_else(gone)?;
        let kept = Kept { started: clock::now(), ..kept(spec, asked.grace, true) };
        self.serve_tenant(Tenant::attended(kept, folder, shepherd).ok_or_else(gone)?)?;
        // It may start its command as soon as it has the answer.
        self.save();
        Ok(Reply::Attached { name: name.to_owned(), folder: path, variables })
    }

    fn stop(&mut self, names: &[String]) -> Result<Vec<String>, Error> {
        let names = self.named(names)?;
        self.stop_tenants(|tenant| names.contains(&tenant.kept.spec.name));
        let stays = self.tenants.iter().any(|tenant| tenant.kept.wanted && tenant.activity().is_active());
        if matches!(self.settings.lifetime, Lifetime::UntilStopped) && !stays {
            self.closing.get_or_insert(Closing::WhenStopped);
        }
        Ok(names)
    }

    fn restart(&mut self, names: &[String]) -> Result<Vec<String>, Error> {
        let names = self.named(names)?;
        let now = clock::now();
        let asked = |tenant: &&mut Tenant| names.contains(&tenant.kept.spec.name);
        if let Some(tenant) = self.tenants.iter_mut().find(|tenant| asked(tenant) && tenant.kept.attended) {
            let name = quoted(&tenant.kept.spec.name);
            return Err(Error::Refused(format!("{name} belongs to the `partywall run` that started it")));
        }
        self.place_again(&names)?;
        self.tenants.iter_mut().filter(asked).for_each(|tenant| tenant.restart(now));
        self.readmit(&names, now);
        self.unsaved = true;
        Ok(names)
    }

    /// Gives tenants that had ended for good their places behind the wall, to all of them or none.
    fn place_again(&mut self, names: &[String]) -> Result<(), Error> {
        let mut placed: Vec<(TenantId, Place)> = Vec::new();
        let asked =
            |tenant: &&Tenant| names.contains(&tenant.kept.spec.name) && !tenant.activity().is_active();
        let specs: Vec<TenantSpec> =
            self.tenants.iter().filter(asked).map(|tenant| tenant.kept.spec.clone()).collect();
        for spec in specs {
            let asked =
                Asked { name: &spec.name, class: spec.class, share: spec.share, squeezed: spec.squeezed };
            match self.place(spec.id, asked) {
                Ok(place) => placed.push((spec.id, place)),
                Err(error) => {
                    placed.iter().for_each(|(id, _)| self.walls.free(*id));
                    return Err(error);
                }
            }
        }
        for (id, place) in placed {
            self.service.confine(id, place);
            let specs = self.tenants.iter_mut().map(|tenant| &mut tenant.kept.spec);
            specs.filter(|spec| spec.id == id).for_each(|spec| *spec = spec.clone().placed(place));
        }
        Ok(())
    }

    fn coverage(&self, name: &str) -> Result<Reply, Error> {
        self.named(&[name.to_owned()])?;
        let id = self.position(name).map(|index| self.tenants[index].kept.spec.id);
        let facts = id.and_then(|id| self.service.snapshot().remove(&id)).unwrap_or_default();
        Ok(Reply::Coverage { facts })
    }

    /// These names, all of which must be tenants'; none stands for all.
    fn named(&self, names: &[String]) -> Result<Vec<String>, Error> {
        let known = || self.tenants.iter().map(|tenant| tenant.kept.spec.name.as_str());
        if names.is_empty() {
            return Ok(known().map(str::to_owned).collect());
        }
        match names.iter().find(|name| self.position(name).is_none()) {
            None => Ok(names.to_vec()),
            Some(name) => {
                let all: Vec<&str> = known().collect();
                let help = match nearest(name, known()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None if all.is_empty() => "there are none".to_owned(),
                    None => format!("there are: {}", all.join(", ")),
                };
                Err(Error::Refused(format!("no tenant is named {}; {help}", quoted(name))))
            }
        }
    }
}

fn kept(spec: TenantSpec, grace: Nanos, attended: bool) -> Kept {
    Kept {
        spec,
        attended,
        wanted: true,
        grace,
        run: 0,
        started: Nanos::ZERO,
        shepherd: None,
        restarts: 0,
        back_off: BackOff::new(),
        end: None,
        faults: 0,
        kept_out: false,
        note: None,
    }
}

/// What the command line has checked already, and other programs may not have: names become paths.
fn check(name: &str, memory: Bytes, weight: Option<u32>, command: &[String]) -> Result<(), Error> {
    let refused = |text: String| Err(Error::Refused(text));
    if !is_tenant_name(name) {
        let right = "use 1 to 63 lower-case letters, digits and hyphens, a letter or digit first and last";
        return refused(format!("{} is no name of a tenant; {right}", quoted(name)));
    }
    if memory == Bytes::ZERO {
        return refused(format!(
            "{name}: a tenant without GPU memory cannot run; write a size such as 12GiB"
        ));
    }
    if let Some(weight) = weight.filter(|weight| !(1..=MAX_WEIGHT).contains(weight)) {
        return refused(format!("{name}: the weight {weight} is out of range; choose 1 to {MAX_WEIGHT}"));
    }
    if command.first().is_none_or(String::is_empty) {
        return refused(format!("{name}: there is no command"));
    }
    Ok(())
}

/// The same as in a file, for who does not come with one.
fn check_promise(name: &str, class: Class, slo: Slo, baseline: Baseline) -> Result<(), Error> {
    let refused = |text: String| Err(Error::Refused(text));
    if class == Class::BestEffort && (slo.is_some() || baseline.p99.is_some()) {
        return refused(format!(
            "{name}: a best-effort tenant takes what is left and is promised nothing; make it latency-sensitive (--class ls)"
        ));
    }
    if let Some((_, problem)) = slo.problem() {
        return refused(format!("{name}: {problem}; promise a time such as 5ms or a slowdown such as 1.2"));
    }
    if baseline.p99 == Some(Nanos::ZERO) {
        return refused(format!(
            "{name}: no request completes within no time; give a baseline such as 1.1ms"
        ));
    }
    Ok(())
}

pub(super) fn token() -> Result<Token, Error> {
    Token::random().map_err(Error::system("drawing a token"))
}
