//! The daemon: owns tenants, their memory and their turns on the link, and says how they are.
//!
//! Start here: [`node`] is the loop that owns everything, [`shepherd`] what stands between a tenant's command and the
//! rest of the world, [`client`] the other end of the control socket.

pub mod arbiter;
pub mod client;
pub mod clock;
mod connection;
pub mod control;
pub mod environment;
pub mod error;
pub mod facts;
pub mod folder;
pub mod http;
pub mod launch;
pub mod leases;
pub mod log;
pub mod metrics;
pub mod node;
pub mod process;
pub mod promise;
pub mod proof;
pub mod registry;
pub mod shepherd;
pub mod signals;
mod state;
mod supervise;
pub mod tenant;
pub mod walls;
pub mod watch;
