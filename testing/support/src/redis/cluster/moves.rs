//! A slot on its way from one primary to another, step by step.

use anyhow::{Context, Result};

use super::{Cluster, PRIMARIES, SLOTS};

/// A slot on its way from one node to another. While it moves, the source answers ASK for keys that
/// it does not have.
#[derive(Debug)]
pub struct SlotMove<'a> {
    cluster: &'a Cluster,
    slot: String,
    from: usize,
    to: usize,
}

impl<'a> SlotMove<'a> {
    /// Moves the slot of this hash tag, from its first owner to the next primary.
    ///
    /// # Errors
    /// When the cluster does not answer.
    pub fn of(cluster: &'a Cluster, tag: &str) -> Result<Self> {
        let slot = cluster.cli(0, &["CLUSTER", "KEYSLOT", tag])?.lines().trim().to_owned();
        let number: usize = slot.parse()?;
        let from = (0..PRIMARIES)
            .find(|i| number < (i + 1) * SLOTS / PRIMARIES)
            .context("no such slot")?;
        Ok(Self { cluster, slot, from, to: (from + 1) % PRIMARIES })
    }

    /// The move of the same slot in the other direction.
    #[must_use]
    pub fn back(self) -> Self {
        Self { from: self.to, to: self.from, ..self }
    }

    /// The node that the slot leaves.
    #[must_use]
    pub fn from(&self) -> usize {
        self.from
    }

    /// The node that the slot goes to.
    #[must_use]
    pub fn to(&self) -> usize {
        self.to
    }

    /// Starts the move: new keys of the slot are created at its target from now on.
    ///
    /// # Errors
    /// When a node does not answer or refuses.
    pub fn begin(&self) -> Result<()> {
        let (from, to) = (self.id(self.from)?, self.id(self.to)?);
        self.cluster.cli(self.to, &["CLUSTER", "SETSLOT", &self.slot, "IMPORTING", &from])?;
        self.cluster.cli(self.from, &["CLUSTER", "SETSLOT", &self.slot, "MIGRATING", &to])?;
        Ok(())
    }

    /// The keys of the slot that have not moved yet.
    ///
    /// # Errors
    /// When the node does not answer.
    pub fn left(&self) -> Result<Vec<String>> {
        let keys =
            self.cluster.cli(self.from, &["CLUSTER", "GETKEYSINSLOT", &self.slot, "100"])?.lines();
        Ok(keys.lines().map(str::to_owned).filter(|key| !key.is_empty()).collect())
    }

    /// Moves one key. Ignores a key that has expired meanwhile.
    ///
    /// # Errors
    /// When a node does not answer or refuses.
    pub fn key(&self, key: &str) -> Result<()> {
        let port = self.cluster.port(self.to)?.to_string();
        self.cluster.cli(self.from, &["MIGRATE", "127.0.0.1", &port, key, "0", "5000"])?;
        Ok(())
    }

    /// Moves all keys that are left.
    ///
    /// # Errors
    /// When a node does not answer or refuses.
    pub fn keys(&self) -> Result<()> {
        self.left()?.iter().try_for_each(|key| self.key(key))
    }

    /// Ends the move: the slot belongs to its target.
    ///
    /// # Errors
    /// When a node does not answer or refuses.
    pub fn end(&self) -> Result<()> {
        let id = self.id(self.to)?;
        self.cluster.cli(self.to, &["CLUSTER", "SETSLOT", &self.slot, "NODE", &id])?;
        self.cluster.cli(self.from, &["CLUSTER", "SETSLOT", &self.slot, "NODE", &id])?;
        Ok(())
    }

    fn id(&self, node: usize) -> Result<String> {
        Ok(self.cluster.cli(node, &["CLUSTER", "MYID"])?.lines().trim().to_owned())
    }
}
