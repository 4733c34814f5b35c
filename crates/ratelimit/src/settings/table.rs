//! What becomes of each environment variable of envoyproxy/ratelimit.

/// A variable of the original.
pub(super) struct Variable {
    pub(super) name: &'static str,
    pub(super) fate: Fate,
}

/// What the service does with a variable that is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It does what the variable says.
    Read,
    /// It says at start that the variable has no effect, and why.
    Ignored(&'static str),
    /// It does not start, unless the variable has this value.
    Refused { unless: &'static str, text: &'static str },
    /// It does what the variable says, if another variable has this value. Otherwise it says at
    /// start that the variable has no effect.
    ReadWith { other: &'static str, value: &'static str },
}

use Fate::{Ignored, Read, ReadWith, Refused};

const fn read(name: &'static str) -> Variable {
    Variable { name, fate: Read }
}

const fn ignored(name: &'static str, text: &'static str) -> Variable {
    Variable { name, fate: Ignored(text) }
}

const fn refused(name: &'static str, unless: &'static str, text: &'static str) -> Variable {
    Variable { name, fate: Refused { unless, text } }
}

const fn with(name: &'static str, other: &'static str, value: &'static str) -> Variable {
    Variable { name, fate: ReadWith { other, value } }
}

const fn of_xds(name: &'static str) -> Variable {
    with(name, "CONFIG_TYPE", "GRPC_XDS_SOTW")
}

const STATSD: &str = "has no effect: metrics are served to Prometheus only. Set USE_PROMETHEUS=true, and let a \
                      Prometheus exporter pass them on to statsd";
const POOL: &str = "has no effect: the service keeps one connection to each Redis, over which requests share calls";
const MEMCACHE: &str = "has no effect: counters are kept in Redis only";
const TRACING: &str = "has no effect: the service exports no traces";
const PER_SECOND: &str = "has no effect: all counters are kept in one Redis";
const STARTUP: &str = "has no effect: the service starts without Redis, and connects when it can";

/// All variables of the original, in the order of its settings.
pub(super) const VARIABLES: &[Variable] = &[
    read("HOST"),
    read("PORT"),
    read("DEBUG_HOST"),
    read("DEBUG_PORT"),
    read("GRPC_UDS"),
    read("GRPC_HOST"),
    read("GRPC_PORT"),
    read("GRPC_MAX_CONNECTION_AGE"),
    read("GRPC_MAX_CONNECTION_AGE_GRACE"),
    read("GRPC_SERVER_USE_TLS"),
    with("GRPC_SERVER_TLS_CERT", "GRPC_SERVER_USE_TLS", "true"),
    with("GRPC_SERVER_TLS_KEY", "GRPC_SERVER_USE_TLS", "true"),
    with("GRPC_CLIENT_TLS_CACERT", "GRPC_SERVER_USE_TLS", "true"),
    with("GRPC_CLIENT_TLS_SAN", "GRPC_SERVER_USE_TLS", "true"),
    read("LOG_LEVEL"),
    read("LOG_FORMAT"),
    read("CONFIG_TYPE"),
    read("FORCE_START_WITHOUT_INITIAL_CONFIG"),
    of_xds("CONFIG_GRPC_XDS_NODE_ID"),
    of_xds("CONFIG_GRPC_XDS_NODE_METADATA"),
    of_xds("CONFIG_GRPC_XDS_SERVER_URL"),
    of_xds("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL"),
    of_xds("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS"),
    of_xds("CONFIG_GRPC_XDS_SERVER_USE_TLS"),
    with("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
    with("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
    with("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
    with("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
    of_xds("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL"),
    of_xds("XDS_CLIENT_BACKOFF_MAX_INTERVAL"),
    of_xds("XDS_CLIENT_BACKOFF_RANDOM_FACTOR"),
    of_xds("XDS_CLIENT_BACKOFF_JITTER"),
    of_xds("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES"),
    ignored("USE_DOG_STATSD", STATSD),
    ignored("USE_DOG_STATSD_MOGRIFIERS", STATSD),
    read("USE_STATSD"),
    ignored("STATSD_HOST", STATSD),
    ignored("STATSD_PORT", STATSD),
    ignored("EXTRA_TAGS", "has no effect: let Prometheus add labels when it scrapes"),
    ignored("STATS_FLUSH_INTERVAL", "has no effect: metrics are never late"),
    ignored(
        "DISABLE_STATS",
        "has no effect: each request counts, and nothing is sent or written until Prometheus asks",
    ),
    read("USE_PROMETHEUS"),
    read("PROMETHEUS_ADDR"),
    read("PROMETHEUS_PATH"),
    ignored(
        "PROMETHEUS_MAPPER_YAML",
        "has no effect: metrics have the names of the default mapper",
    ),
    ignored(
        "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS",
        "has no effect: times in metrics are in seconds",
    ),
    read("RUNTIME_ROOT"),
    read("RUNTIME_SUBDIRECTORY"),
    read("RUNTIME_APPDIRECTORY"),
    read("RUNTIME_IGNOREDOTFILES"),
    read("RUNTIME_WATCH_ROOT"),
    ignored(
        "EXPIRATION_JITTER_MAX_SECONDS",
        "has no effect: counters expire with their windows, and cause no load then",
    ),
    ignored(
        "LOCAL_CACHE_SIZE_IN_BYTES",
        "has no effect: the service always remembers which counters are spent",
    ),
    read("NEAR_LIMIT_RATIO"),
    ignored("CACHE_KEY_PREFIX", "has no effect: set QUOTAGATE_PREFIX, the prefix of every key"),
    refused("BACKEND_TYPE", "redis", "must be redis: counters are kept in Redis only"),
    ignored(
        "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
        "has no effect: a refused request never counts, unless --count-refused is set",
    ),
    read("LIMIT_RESPONSE_HEADERS_ENABLED"),
    read("LIMIT_LIMIT_HEADER"),
    read("LIMIT_REMAINING_HEADER"),
    read("LIMIT_RESET_HEADER"),
    read("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED"),
    read("REDIS_SOCKET_TYPE"),
    read("REDIS_TYPE"),
    read("REDIS_URL"),
    ignored("REDIS_POOL_SIZE", POOL),
    read("REDIS_AUTH"),
    read("REDIS_TLS"),
    read("REDIS_TLS_CLIENT_CERT"),
    read("REDIS_TLS_CLIENT_KEY"),
    read("REDIS_TLS_CACERT"),
    refused(
        "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION",
        "false",
        "is not supported: begin with --store rediss://HOST?server_name=NAME, with a name that the \
         certificate has, and unset it",
    ),
    ignored("REDIS_PIPELINE_WINDOW", POOL),
    ignored("REDIS_PIPELINE_LIMIT", POOL),
    ignored("REDIS_CLUSTER_PIPELINE_PARALLELISM", POOL),
    ignored("REDIS_PERSECOND", PER_SECOND),
    ignored("REDIS_PERSECOND_SOCKET_TYPE", PER_SECOND),
    ignored("REDIS_PERSECOND_TYPE", PER_SECOND),
    ignored("REDIS_PERSECOND_URL", PER_SECOND),
    ignored("REDIS_PERSECOND_POOL_SIZE", PER_SECOND),
    ignored("REDIS_PERSECOND_AUTH", PER_SECOND),
    ignored("REDIS_PERSECOND_TLS", PER_SECOND),
    with("REDIS_SENTINEL_AUTH", "REDIS_TYPE", "SENTINEL"),
    ignored("REDIS_PERSECOND_SENTINEL_AUTH", PER_SECOND),
    ignored("REDIS_PERSECOND_PIPELINE_WINDOW", PER_SECOND),
    ignored("REDIS_PERSECOND_PIPELINE_LIMIT", PER_SECOND),
    ignored("REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", PER_SECOND),
    read("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION"),
    ignored("REDIS_TIMEOUT", "has no effect: set --timeout, the longest that a request waits"),
    ignored("REDIS_PERSECOND_TIMEOUT", PER_SECOND),
    ignored("REDIS_POOL_ON_EMPTY_BEHAVIOR", POOL),
    ignored("REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", PER_SECOND),
    ignored("REDIS_STARTUP_INITIAL_INTERVAL", STARTUP),
    ignored("REDIS_STARTUP_MAX_INTERVAL", STARTUP),
    ignored("REDIS_STARTUP_MAX_ELAPSED_TIME", STARTUP),
    ignored("MEMCACHE_HOST_PORT", MEMCACHE),
    ignored("MEMCACHE_MAX_IDLE_CONNS", MEMCACHE),
    ignored("MEMCACHE_SRV", MEMCACHE),
    ignored("MEMCACHE_SRV_REFRESH", MEMCACHE),
    ignored("MEMCACHE_TLS", MEMCACHE),
    ignored("MEMCACHE_TLS_CLIENT_CERT", MEMCACHE),
    ignored("MEMCACHE_TLS_CLIENT_KEY", MEMCACHE),
    ignored("MEMCACHE_TLS_CACERT", MEMCACHE),
    ignored("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", MEMCACHE),
    read("SHADOW_MODE"),
    read("QUOTA_MODE"),
    read("RESPONSE_DYNAMIC_METADATA"),
    read("MERGE_DOMAIN_CONFIG"),
    ignored("TRACING_ENABLED", TRACING),
    ignored("TRACING_SERVICE_NAME", TRACING),
    ignored("TRACING_SERVICE_NAMESPACE", TRACING),
    ignored("TRACING_SERVICE_INSTANCE_ID", TRACING),
    ignored("TRACING_EXPORTER_PROTOCOL", TRACING),
    ignored("TRACING_SAMPLING_RATE", TRACING),
];
