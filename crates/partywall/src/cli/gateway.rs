//! What can be said to `partywall gateway`.

use std::path::PathBuf;

use clap::Args;

/// `partywall gateway`.
#[derive(Debug, Args)]
pub struct GatewayArguments {
    /// Where to listen, which replicas there are, what requests may do; `examples/gateway.toml` is one. Files that it names are relative to
    /// its folder.
    #[arg(value_name = "gateway.toml", required_unless_present_any = ["example", "schema"])]
    pub file: Option<PathBuf>,
    /// Check the file and the files that it names, and do nothing else.
    #[arg(long, requires = "file")]
    pub check: bool,
    /// Print a commented example.
    #[arg(long, conflicts_with = "file")]
    pub example: bool,
    /// Print the JSON schema.
    #[arg(long, conflicts_with_all = ["file", "example"])]
    pub schema: bool,
}
