//! Why something cannot be simulated.

use crate::layout::LayoutError;
use crate::load::LoadError;
use crate::machine::SetupError;
use crate::profile::ProfileError;

/// What stands in the way of a run, by the part that refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SimError {
    /// No such network, or a damaged one.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The wall does not exist on the GPU, or the tenants do not fit.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A load is out of range.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The parts contradict each other.
    #[error(transparent)]
    Setup(#[from] SetupError),
}
