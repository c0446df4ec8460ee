//! A router in front of engines, in virtual time, under the load of a trace.

use std::collections::BTreeSet;

use partywall_core::tenant::Class;
use partywall_core::units::Nanos;
use partywall_routing::policy::Policy;
use partywall_routing::prefix::PrefixHash;
use partywall_routing::replica::{Capacity, ReplicaId};
use partywall_routing::router::{Arrival, ModelId, RequestId, Router, RouterError, RouterSettings, Verdict};

use super::engine::{Engine, EngineSettings, Happened, Submission};
use super::view::HeldBlocks;
use crate::trace::PromptRequest;

#[cfg(test)]
mod tests;

/// A request of a load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadRequest {
    /// When it comes.
    pub at: Nanos,
    /// Who it is for.
    pub class: Class,
    /// Its prompt's whole blocks.
    pub prefixes: Vec<PrefixHash>,
    /// Tokens of its prompt.
    pub input_tokens: u64,
    /// Tokens that it generates.
    pub output_tokens: u32,
}

impl LoadRequest {
    /// A request of a trace, of this class.
    pub fn of_trace(request: PromptRequest, class: Class) -> Self {
        Self {
            at: request.at,
            class,
            prefixes: request.prefixes,
            input_tokens: request.input_tokens.into(),
            output_tokens: request.output_tokens,
        }
    }
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Fate {
    /// When it was sent to an engine.
    pub sent: Option<Nanos>,
    /// When its first token came.
    pub first_token: Option<Nanos>,
    /// When it had all tokens.
    pub finished: Option<Nanos>,
    /// When it was refused.
    pub refused: Option<Nanos>,
    /// When its first token was expected as it was sent.
    pub expected: Option<Nanos>,
    /// Tokens of its prompt that were held.
    pub cached_tokens: u64,
    /// Tokens of its prompt that were expected to be held.
    pub expected_cached_tokens: u64,
}

/// A fleet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FleetSettings {
    /// Engines, all alike.
    pub engines: u32,
    /// What each can do.
    pub engine: EngineSettings,
    /// What the router goes by.
    pub router: RouterSettings,
    /// The router takes all requests for latency-sensitive ones.
    pub class_blind: bool,
    /// Answers come whole, not as streams: the router hears of a first token when all of the answer is there.
    pub whole: bool,
}

/// Sends every request of `load`, which is in order of time, through a router with this policy to engines that are empty at first, and says
/// what became of each, in the order of `load`. What has not ended by `until` has not ended.
///
/// # Errors
/// The engines are no replicas that a router takes.
pub fn replay(
    load: &[LoadRequest],
    settings: &FleetSettings,
    policy: Box<dyn Policy>,
    until: Nanos,
) -> Result<Vec<Fate>, RouterError> {
    let mut fleet = Fleet::new(load, settings, policy)?;
    fleet.run(until);
    Ok(fleet.fates)
}

struct Fleet<'a> {
    load: &'a [LoadRequest],
    class_blind: bool,
    whole: bool,
    next_arrival: usize,
    router: Router,
    view: HeldBlocks,
    engines: Vec<Engine>,
    /// When which engine is to be advanced.
    due: BTreeSet<(Nanos, u32)>,
    /// The entry of each engine in `due`.
    planned: Vec<Option<Nanos>>,
    fates: Vec<Fate>,
    happened: Vec<Happened>,
    verdicts: Vec<(RequestId, Verdict)>,
}

impl<'a> Fleet<'a> {
    fn new(
        load: &'a [LoadRequest],
        settings: &FleetSettings,
        policy: Box<dyn Policy>,
    ) -> Result<Self, RouterError> {
        let mut router = Router::new(policy, settings.router);
        let engine = settings.engine;
        let capacity = Capacity {
            prefill_tokens_per_s: engine.prefill_tokens_per_s,
            token_time: engine.token_time,
            streams: engine.streams,
            block_tokens: engine.block_tokens,
            cache_blocks: engine.cache_blocks,
        };
        for _ in 0..settings.engines {
            router.add_replica(Nanos::ZERO, capacity, &[ModelId(0)])?;
        }
        Ok(Self {
            load,
            class_blind: settings.class_blind,
            whole: settings.whole,
            next_arrival: 0,
            router,
            view: HeldBlocks::default(),
            engines: vec![Engine::new(engine); settings.engines as usize],
            due: BTreeSet::new(),
            planned: vec![None; settings.engines as usize],
            fates: vec![Fate::default(); load.len()],
            happened: Vec::new(),
            verdicts: Vec::new(),
        })
    }

    fn run(&mut self, until: Nanos) {
        loop {
            let arrival = self.load.get(self.next_arrival).map(|request| request.at);
            let engine = self.due.first().copied();
            let poll = self.router.next_poll();
            let Some(now) = [arrival, engine.map(|(at, _)| at), poll].into_iter().flatten().min() else {
                return;
            };
            if now > until {
                return;
            }
            // Engines first: what has happened is known before something is decided at the same time.
            match engine {
                Some((at, index)) if at == now => self.advance(now, index),
                _ if arrival == Some(now) => self.arrive(now),
                _ => self.poll(now),
            }
        }
    }

    fn advance(&mut self, now: Nanos, index: u32) {
        let mut happened = std::mem::take(&mut self.happened);
        self.engines[index as usize].advance(now, &mut happened);
        let mut room = false;
        for event in happened.drain(..) {
            room |= self.tell(now, ReplicaId(index), event);
        }
        self.happened = happened;
        self.plan(index);
        if room {
            self.poll(now);
        }
    }

    /// Tells the router what has happened; whether it may have made room for a request that is held.
    fn tell(&mut self, now: Nanos, replica: ReplicaId, event: Happened) -> bool {
        match event {
            Happened::FirstToken { id, cached_tokens } => {
                let fate = &mut self.fates[id.0 as usize];
                (fate.first_token, fate.cached_tokens) = (Some(now), cached_tokens);
                if !self.whole {
                    self.router.first_token(now, id, Some(cached_tokens));
                }
                !self.whole
            }
            Happened::Tokens { id, n } => {
                if !self.whole {
                    self.router.tokens(id, n);
                }
                false
            }
            Happened::Finished { id } => {
                if self.whole {
                    self.router.first_token(now, id, Some(self.fates[id.0 as usize].cached_tokens));
                }
                self.fates[id.0 as usize].finished = Some(now);
                self.router.ended(now, id);
                true
            }
            Happened::Stored { blocks, .. } => {
                self.view.stored(replica, &blocks);
                false
            }
            Happened::Removed { blocks } => {
                self.view.removed(replica, &blocks);
                false
            }
        }
    }

    fn arrive(&mut self, now: Nanos) {
        let (index, request) = (self.next_arrival, &self.load[self.next_arrival]);
        self.next_arrival += 1;
        let id = RequestId(index as u64);
        let arrival = Arrival {
            id,
            class: if self.class_blind { Class::LatencySensitive } else { request.class },
            model: ModelId(0),
            prefixes: request.prefixes.clone(),
            input_tokens: request.input_tokens,
            whole: self.whole,
            output_tokens: None,
            affinity: None,
            deadline: None,
        };
        let verdict = self.router.arrive(now, arrival, &self.view);
        self.follow(now, id, verdict);
    }

    fn poll(&mut self, now: Nanos) {
        let mut verdicts = std::mem::take(&mut self.verdicts);
        self.router.poll(now, &self.view, &mut verdicts);
        for (id, verdict) in verdicts.drain(..) {
            self.follow(now, id, verdict);
        }
        self.verdicts = verdicts;
    }

    fn follow(&mut self, now: Nanos, id: RequestId, verdict: Verdict) {
        let (request, fate) = (&self.load[id.0 as usize], &mut self.fates[id.0 as usize]);
        let placement = match verdict {
            Verdict::Held => return,
            Verdict::Refused(_) => {
                fate.refused = Some(now);
                return;
            }
            Verdict::Send(placement) => placement,
        };
        fate.sent = Some(now);
        fate.expected = Some(now.saturating_add(placement.expected_ttft));
        let engine = &mut self.engines[placement.replica.index()];
        fate.expected_cached_tokens =
            u64::from(placement.cached_blocks) * u64::from(engine.settings().block_tokens);
        let submission = Submission {
            id,
            prefixes: request.prefixes.clone(),
            input_tokens: request.input_tokens,
            output_tokens: request.output_tokens,
            class: request.class,
        };
        if engine.submit(now, submission).is_err() {
            fate.refused = Some(now);
            self.router.failed(now, id);
        }
        self.plan(placement.replica.0);
    }

    fn plan(&mut self, index: u32) {
        let planned = &mut self.planned[index as usize];
        if let Some(at) = planned.take() {
            self.due.remove(&(at, index));
        }
        *planned = self.engines[index as usize].next_event();
        if let Some(at) = *planned {
            self.due.insert((at, index));
        }
    }
}
