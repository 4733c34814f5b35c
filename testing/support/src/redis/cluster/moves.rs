//! A slot on its way from one primary to another, step by step.

use anyhow::{Context, Result};

use super::{Cluster, PRIMARIES, SLOTS};

/// A slot on its way from one node to another. While it moves, the source answers ASK for the keys
/// that it has not.
#[derive(Debug)]
pub struct SlotMove<'a> {
    cluster: &'a Cluster,
    slot: String,
    from: usize,
    to: usize,
}

impl<'a> SlotMove<'a> {
    /// Of the slot of this hash tag, from its first owner to the next primary.
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

    /// The same slot's way back.
    #[must_use]
    pub fn back(self) -> Self {
        Self { from: self.to, to: self.from, ..self }
    }

    /// The node that it leaves.
    #[must_use]
    pub fn from(&self) -> usize {
        self.from
    }

    /// The node that it goes to.
    #[must_use]
    pub fn to(&self) -> usize {
        self.to
    }

    /// From now on new keys of the slot are born where it goes to.
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

    /// Moves one key. One that has expired meanwhile is none.
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

    /// The slot now belongs to the node that it went to.
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
