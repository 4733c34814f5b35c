//! What operators do, as one suite over every backend: memory, Redis, and a Redis Cluster of six
//! nodes.

mod dials;
mod documents;
mod overrides;
mod rule_files;
mod windows;

use std::sync::Arc;

use quotagate_store::store::Store;
use quotagate_support::cluster::Cluster;
use quotagate_support::redis::Redis;

use crate::common::open;

async fn suite(store: Arc<dyn Store>) {
    dials::sets_and_clears_dials(&store).await;
    dials::enforces_no_shadow_policy_by_the_way(&store).await;
    dials::enforces_a_policy_for_a_share(&store).await;
    dials::checks_for_whom_a_policy_is_enforced(&store).await;
    dials::merges_fields_of_a_dial(&store).await;
    dials::reverts_dials_by_themselves(&store).await;
    dials::refuses_unknown_names_and_values_out_of_bounds(&store).await;
    dials::shows_other_stores(&store).await;
    dials::keeps_every_one_of_many_concurrent_changes(&store).await;
    overrides::overrides_one_partition(&store).await;
    overrides::ends_overrides_by_themselves(&store).await;
    overrides::refuses_invalid_overrides(&store).await;
    overrides::says_where_an_override_refuses_nobody(&store).await;
    overrides::shows_and_resets_counters(&store).await;
    overrides::overrides_every_partition_of_a_party(&store).await;
    overrides::keeps_the_quota_beneath_an_override_of_a_party(&store).await;
    overrides::keeps_the_time_of_an_override(&store).await;
    overrides::records_the_end_of_an_override_of_a_party(&store).await;
    overrides::says_where_a_quota_comes_from(&store).await;
    overrides::suggests_the_party_that_an_operator_meant(&store).await;
    overrides::finds_composite_partitions(&store).await;
    documents::publishes_documents_and_goes_back(&store).await;
    documents::refuses_documents_with_faults(&store).await;
    documents::tells_the_slower_of_two_publishers(&store).await;
    documents::keeps_what_proxies_have_while_the_last_record_cannot_be_read(&store).await;
    documents::keeps_64_documents(&store).await;
    Box::pin(rule_files::go_to_services_and_never_to_filters(&store)).await;
    Box::pin(rule_files::go_back_when_their_time_is_over(&store)).await;
    Box::pin(documents::publishes_for_a_stable_share_of_the_proxies(&store)).await;
    Box::pin(documents::first_document_may_be_for_a_share(&store)).await;
    Box::pin(documents::goes_back_when_the_time_is_over(&store)).await;
    Box::pin(documents::share_ends_with_its_time(&store)).await;
    Box::pin(documents::lost_document_of_before_locks_nothing(&store)).await;
    Box::pin(documents::domain_with_a_limited_document_is_not_forgotten(&store)).await;
    Box::pin(documents::publishes_a_folder_unless_a_change_by_hand_is_later(&store)).await;
    windows::operates_each_kind_of_window(&store).await;
    windows::shows_and_releases_slots(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_conforms() {
    suite(open("memory:").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_conforms() {
    let redis = Redis::start().unwrap();
    suite(open(&redis.url()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_cluster_conforms() {
    let cluster = Cluster::start().unwrap();
    suite(open(&cluster.url()).await).await;
}
