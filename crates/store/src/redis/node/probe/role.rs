//! The role of a server: primary, replica or sentinel.

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisError, Value};

use super::super::target::Topology;

/// What a server says about its role.
#[derive(Debug, PartialEq, Eq)]
pub enum Role {
    /// It takes writes.
    Primary,
    /// It follows the server at this address.
    Replica(String),
    /// It is a sentinel.
    Sentinel,
    /// It does not say.
    Unknown,
}

impl Role {
    /// Asks a server.
    ///
    /// # Errors
    /// When no answer came.
    pub async fn read(connection: &mut MultiplexedConnection) -> Result<Self, RedisError> {
        let mut ask = Pipeline::new();
        ask.cmd("ROLE");
        let replies = connection.send_packed_commands(&ask, 0, 1).await?;
        let Some(Value::Array(fields)) = replies.first() else { return Ok(Self::Unknown) };
        Ok(match fields.as_slice() {
            [Value::BulkString(role), ..] if role == b"master" => Self::Primary,
            [Value::BulkString(role), Value::BulkString(host), Value::Int(port), ..]
                if role == b"slave" =>
            {
                Self::Replica(format!("{}:{port}", String::from_utf8_lossy(host)))
            }
            [Value::BulkString(role), ..] if role == b"sentinel" => Self::Sentinel,
            _ => Self::Unknown,
        })
    }

    /// Why the server cannot count, and the remedy. `None` if it can, as far as it says.
    pub fn not_primary(&self, topology: Topology) -> Option<String> {
        let fault = match self {
            Self::Primary | Self::Unknown => return None,
            Self::Replica(of) => format!("is a replica of {of}"),
            Self::Sentinel => "is a sentinel".to_owned(),
        };
        Some(format!("{fault}: {}", point_elsewhere(topology)))
    }
}

/// The remedy for a server that is no primary.
pub fn point_elsewhere(topology: Topology) -> &'static str {
    match topology {
        Topology::Single => "point --store at the primary, or use redis-sentinel://",
        Topology::Sentinel => {
            "the sentinels still name it as the primary; this ends with their failover, or after SENTINEL RESET"
        }
        Topology::Cluster => "wait for the failover of the cluster",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_for_a_replica_fits_how_it_was_found() {
        let replica = Role::Replica("10.0.0.1:6379".to_owned());
        let advice = |topology| replica.not_primary(topology).unwrap();
        assert!(
            advice(Topology::Single)
                .ends_with("point --store at the primary, or use redis-sentinel://")
        );
        let named = advice(Topology::Sentinel);
        assert!(
            named.starts_with("is a replica of 10.0.0.1:6379: ") && named.contains("failover"),
            "{named}"
        );
        assert!(!named.contains("redis-sentinel://"), "{named}");
        assert_eq!(Role::Primary.not_primary(Topology::Single), None);
    }
}
