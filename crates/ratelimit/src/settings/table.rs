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
}

use Fate::{Ignored, Read, Refused};

const fn read(name: &'static str) -> Variable {
    Variable { name, fate: Read }
}

const fn ignored(name: &'static str, text: &'static str) -> Variable {
    Variable { name, fate: Ignored(text) }
}

const fn refused(name: &'static str, unless: &'static str, text: &'static str) -> Variable {
    Variable { name, fate: Refused { unless, text } }
}

const STATSD: &str = "has no effect: metrics are served to Prometheus only. Set USE_PROMETHEUS=true, and let a \
                      Prometheus exporter pass them on to statsd";
const POOL: &str = "has no effect: the service keeps one connection to each Redis, over which requests share calls";
const MEMCACHE: &str = "has no effect: counters are kept in Redis only";
const TRACING: &str = "has no effect: the service exports no traces";
const PER_SECOND: &str = "has no effect: all counters are kept in one Redis";
const SERVER_TLS: &str =
    "is not supported: let a proxy on the same machine take the TLS connection, and unset it";
const XDS: &str = "has no effect: rules come from files";
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
    ignored(
        "GRPC_MAX_CONNECTION_AGE",
        "has no effect: connections stay open until the service drains",
    ),
    ignored("GRPC_MAX_CONNECTION_AGE_GRACE", "has no effect: connections have no longest age"),
    refused("GRPC_SERVER_USE_TLS", "false", SERVER_TLS),
    ignored("GRPC_SERVER_TLS_CERT", "has no effect without GRPC_SERVER_USE_TLS"),
    ignored("GRPC_SERVER_TLS_KEY", "has no effect without GRPC_SERVER_USE_TLS"),
    ignored("GRPC_CLIENT_TLS_CACERT", "has no effect without GRPC_SERVER_USE_TLS"),
    ignored("GRPC_CLIENT_TLS_SAN", "has no effect without GRPC_SERVER_USE_TLS"),
    read("LOG_LEVEL"),
    refused("LOG_FORMAT", "text", "must be text: logs have no other format"),
    refused(
        "CONFIG_TYPE",
        "FILE",
        "must be FILE: the service reads rules from files. Put them where RUNTIME_ROOT says",
    ),
    ignored(
        "FORCE_START_WITHOUT_INITIAL_CONFIG",
        "has no effect: the service always starts, and /healthcheck fails until rules are in force",
    ),
    ignored("CONFIG_GRPC_XDS_NODE_ID", XDS),
    ignored("CONFIG_GRPC_XDS_NODE_METADATA", XDS),
    ignored("CONFIG_GRPC_XDS_SERVER_URL", XDS),
    ignored("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", XDS),
    ignored("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", XDS),
    ignored("CONFIG_GRPC_XDS_SERVER_USE_TLS", XDS),
    ignored("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", XDS),
    ignored("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", XDS),
    ignored("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", XDS),
    ignored("CONFIG_GRPC_XDS_SERVER_TLS_SAN", XDS),
    ignored("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", XDS),
    ignored("XDS_CLIENT_BACKOFF_MAX_INTERVAL", XDS),
    ignored("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", XDS),
    ignored("XDS_CLIENT_BACKOFF_JITTER", XDS),
    ignored("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", XDS),
    ignored("USE_DOG_STATSD", STATSD),
    ignored("USE_DOG_STATSD_MOGRIFIERS", STATSD),
    read("USE_STATSD"),
    ignored("STATSD_HOST", STATSD),
    ignored("STATSD_PORT", STATSD),
    ignored("EXTRA_TAGS", "has no effect: let Prometheus add labels when it scrapes"),
    ignored("STATS_FLUSH_INTERVAL", "has no effect: metrics are never late"),
    ignored("DISABLE_STATS", "has no effect: metrics cost nothing until they are scraped"),
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
    ignored(
        "RUNTIME_WATCH_ROOT",
        "has no effect: every change of a rule file is seen, and every swap of a link",
    ),
    ignored(
        "EXPIRATION_JITTER_MAX_SECONDS",
        "has no effect: counters expire with their windows, and cause no load then",
    ),
    ignored(
        "LOCAL_CACHE_SIZE_IN_BYTES",
        "has no effect: the service always remembers which counters are spent",
    ),
    ignored("NEAR_LIMIT_RATIO", "has no effect: no metric counts requests near a limit"),
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
    ignored(
        "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
        "has no effect: /healthcheck always fails until rules are in force",
    ),
    read("REDIS_SOCKET_TYPE"),
    read("REDIS_TYPE"),
    read("REDIS_URL"),
    ignored("REDIS_POOL_SIZE", POOL),
    read("REDIS_AUTH"),
    read("REDIS_TLS"),
    read("REDIS_TLS_CLIENT_CERT"),
    read("REDIS_TLS_CLIENT_KEY"),
    refused(
        "REDIS_TLS_CACERT",
        "",
        "is not read: name the same file in SSL_CERT_FILE, and unset it",
    ),
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
    refused(
        "REDIS_SENTINEL_AUTH",
        "",
        "is not read: begin with --store redis-sentinel://...?sentinel_password_file=FILE, and \
         unset it",
    ),
    ignored("REDIS_PERSECOND_SENTINEL_AUTH", PER_SECOND),
    ignored("REDIS_PERSECOND_PIPELINE_WINDOW", PER_SECOND),
    ignored("REDIS_PERSECOND_PIPELINE_LIMIT", PER_SECOND),
    ignored("REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", PER_SECOND),
    ignored(
        "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
        "has no effect: /healthcheck always asks Redis",
    ),
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
