//! `quotagate digest`: prints a partition as counter keys and policy documents hold it.

use serde_json::json;

use super::failure::Failure;
use super::partition::PartitionArgs;
use super::session::{Common, Session};

/// The flags of `quotagate digest`.
#[derive(Debug, clap::Args)]
pub(crate) struct DigestArgs {
    #[command(flatten)]
    partition: PartitionArgs,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Prints the partition. Only a missing `--domain` needs a store.
///
/// # Errors
/// When it is no partition, or a secret or the domain cannot be read.
pub(crate) async fn run(args: &DigestArgs, session: Session) -> Result<(), Failure> {
    let partition = args.partition.encode(&session, "").await?;
    if session.output.json {
        return session.output.json(&json!({"partition": partition}).to_string().into());
    }
    session.output.sentence(&partition)
}
