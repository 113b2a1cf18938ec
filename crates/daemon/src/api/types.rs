//! Messages of the control socket, as `io.sheave.Control.varlink` defines them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::shapes::pool::PoolJson;

/// Name of the interface.
pub const INTERFACE: &str = "io.sheave.Control";
/// Definition of the interface.
pub const IDL: &str = include_str!("io.sheave.Control.varlink");

/// Parameters of a method that has none.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// Identity of a file or device under a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceId {
    pub device: u64,
    pub inode: u64,
}

/// A pool, in the reply of `ListPools`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoolRow {
    pub name: String,
    pub place: String,
    pub read_only: bool,
    pub devices: Vec<DeviceId>,
    pub failed: Option<String>,
    pub fix: Option<String>,
}

/// The reply of `ListPools`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pools {
    pub pools: Vec<PoolRow>,
}

/// A queue of a vhost-user device that a client has set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VhostQueue {
    pub queue: u64,
    pub reactor: u64,
    pub size: u64,
    pub in_flight: u64,
}

/// The vhost-user device of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VhostUser {
    pub socket: String,
    pub queues: u64,
    pub client: Option<u64>,
    pub running: Vec<VhostQueue>,
}

impl VhostUser {
    /// Returns the number of requests in flight, in all queues.
    pub fn in_flight(&self) -> u64 {
        self.running.iter().map(|queue| queue.in_flight).sum()
    }
}

/// An export, in the reply of `ListExports`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExportRow {
    pub name: String,
    pub pool: Option<String>,
    pub volume: Option<String>,
    pub spec: Option<String>,
    pub read_only: bool,
    pub size_bytes: u64,
    pub clients: u32,
    #[serde(default)]
    pub limit: Option<String>,
    #[serde(default)]
    pub allow: Option<Vec<String>>,
    #[serde(default)]
    pub vhost_user: Option<VhostUser>,
    pub failed: Option<String>,
}

/// The reply of `ListExports`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExportRows {
    pub exports: Vec<ExportRow>,
}

/// A client, in the reply of `ListClients`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClientRow {
    pub id: u64,
    pub peer: String,
    pub export: Option<String>,
    pub connected_seconds: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub failed_requests: u64,
}

/// The reply of `ListClients`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClientRows {
    pub clients: Vec<ClientRow>,
}

/// Parameters of `AddExport`. The fields of a vhost-user device are sent only with one, because older servers reject
/// them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddExport {
    pub name: String,
    #[serde(default)]
    pub pool: Option<String>,
    #[serde(default)]
    pub volume: Option<String>,
    #[serde(default)]
    pub spec: Option<String>,
    #[serde(default)]
    pub read_only: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vhost_user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vhost_queues: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vhost_in_order: Option<bool>,
}

/// Parameters of `LimitExport`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitExport {
    pub name: String,
    #[serde(default)]
    pub limit: Option<String>,
}

/// Parameters of `RemoveExport`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveExport {
    pub name: String,
    #[serde(default)]
    pub force: Option<bool>,
}

/// Time that I/Os spent in each stage.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct SplitRow {
    pub worker_ns: u64,
    pub tag_ns: u64,
    pub plugged_ns: u64,
    pub driver_ns: u64,
    pub reap_ns: u64,
}

/// A bucket of a latency histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyCell {
    pub from_ns: u64,
    pub ios: u64,
}

/// Statistics of one kind of I/O.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KindStatistics {
    pub kind: String,
    pub ios: u64,
    pub bytes: u64,
    pub time_ns: u64,
    pub stages: SplitRow,
    pub latencies: Vec<LatencyCell>,
}

/// Requests of clients that were answered, including those that needed no I/O on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestCounts {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub written_bytes: u64,
    pub others: u64,
}

/// Statistics of an export.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExportStatistics {
    pub name: String,
    pub pool: Option<String>,
    pub volume: Option<String>,
    pub size_bytes: u64,
    pub clients: u32,
    pub failed_requests: u64,
    #[serde(default)]
    pub requests: RequestCounts,
    #[serde(default)]
    pub failed: Option<String>,
    #[serde(default)]
    pub vhost_user: Option<VhostUser>,
    pub errors: u64,
    pub kinds: Vec<KindStatistics>,
}

/// Statistics of the ring of a reactor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QueueStatistics {
    pub queue: u64,
    pub errors: u64,
    pub kinds: Vec<KindStatistics>,
}

/// Space of a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoolStatistics {
    pub name: String,
    pub size_bytes: u64,
    pub data_bytes: u64,
    pub metadata_bytes: u64,
    pub free_bytes: u64,
    pub state: String,
    #[serde(default)]
    pub host_free_bytes: Option<u64>,
    #[serde(default)]
    pub lost_if_killed: Option<String>,
    #[serde(default)]
    pub failed: Option<String>,
}

/// Counters of one operation on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceOperation {
    pub operation: String,
    pub ios: u64,
    pub bytes: u64,
    pub merges: u64,
    pub errors: u64,
    pub time_ns: u64,
}

/// Statistics of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceStatistics {
    pub name: String,
    pub pool: Option<String>,
    pub export: Option<String>,
    pub kept: bool,
    pub operations: Vec<DeviceOperation>,
    pub busy_ns: u64,
    pub in_flight_reads: u32,
    pub in_flight_writes: u32,
    pub in_flight_others: u32,
}

impl DeviceStatistics {
    /// Returns the number of requests in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight_reads + self.in_flight_writes + self.in_flight_others
    }

    /// Returns the number of requests that failed.
    pub fn errors(&self) -> u64 {
        self.operations.iter().map(|one| one.errors).sum()
    }
}

/// Parameters of `SetDeviceStatistics`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetDeviceStatistics {
    #[serde(default)]
    pub device: Option<String>,
    pub kept: bool,
}

/// The reply of `SetDeviceStatistics`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DevicesSet {
    pub devices: Vec<String>,
}

/// A problem, in the reply of `GetHealth`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    pub kind: String,
    pub severity: String,
    pub about: String,
    pub name: String,
    pub cause: String,
    pub fix: String,
    pub since_seconds: u64,
}

/// The reply of `GetHealth`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    pub severity: String,
    pub problems: Vec<Problem>,
    pub problems_total: u64,
}

/// The reply of `GetStatistics`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Statistics {
    pub uptime_ns: u64,
    pub reactors: u64,
    pub queues: Vec<QueueStatistics>,
    pub exports: Vec<ExportStatistics>,
    pub exports_total: u64,
    pub pools: Vec<PoolStatistics>,
    pub pools_total: u64,
    pub clients: Vec<ClientRow>,
    pub clients_total: u64,
    #[serde(default)]
    pub devices: Vec<DeviceStatistics>,
    #[serde(default)]
    pub devices_total: u64,
    #[serde(default)]
    pub health: Health,
}

/// A slow I/O, in the reply of `ListSlowIos`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SlowRow {
    pub reactor: u64,
    pub number: u64,
    pub export: Option<String>,
    pub kind: String,
    pub offset: u64,
    pub on_device: bool,
    pub length: u32,
    pub ios: u32,
    pub ended_ms: u64,
    pub latency_ns: u64,
    pub split: SplitRow,
    pub longest: String,
    pub depth: u32,
    pub beside: Vec<String>,
    pub slow_above_ns: u64,
    pub usual_p999_ns: Option<u64>,
    pub explained: String,
}

/// Parameters of `ListSlowIos`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListSlow {
    #[serde(default)]
    pub since: Option<Vec<u64>>,
}

/// The reply of `ListSlowIos`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SlowRows {
    pub ios: Vec<SlowRow>,
    pub next: Vec<u64>,
    pub lost: u64,
    pub limit_ns: u64,
}

/// Parameters of `SetSlowLimit`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetSlowLimit {
    pub limit_ns: u64,
}

/// Parameters of `StartTrace`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartTrace {
    #[serde(default)]
    pub size_bytes: Option<u64>,
}

/// The reply of `StartTrace`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Traced {
    pub directory: String,
    pub reactors: u64,
    pub entries: u64,
}

/// Parameters of `DisconnectClient`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disconnect {
    pub id: u64,
}

/// Parameters of methods that concern a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfPool {
    pub pool: String,
}

/// Parameters of `SetPool`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetPool {
    pub pool: String,
    #[serde(default)]
    pub low_water: Option<String>,
    #[serde(default)]
    pub discard: Option<bool>,
    #[serde(default)]
    pub acknowledge_loss: Option<bool>,
}

/// Parameters of `GrowPool`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grow {
    pub pool: String,
    pub spec: String,
    #[serde(default)]
    pub overwrite: Option<bool>,
}

/// The reply of `GrowPool`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Grown {
    pub place: String,
    #[serde(default)]
    pub beyond_search: Vec<String>,
    pub info: PoolJson,
}

/// Parameters of methods that concern a volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfVolume {
    pub pool: String,
    pub volume: String,
}

/// Parameters of `CreateVolume`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Create {
    pub pool: String,
    pub volume: String,
    pub size_bytes: u64,
    #[serde(default)]
    pub max_size_bytes: Option<u64>,
}

/// Parameters of `ResizeVolume`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    pub pool: String,
    pub volume: String,
    #[serde(default)]
    pub size_bytes: Option<u64>,
    #[serde(default)]
    pub max_size_bytes: Option<u64>,
    #[serde(default)]
    pub force: Option<bool>,
}

/// Parameters of `RenameVolume`, `CreateSnapshot` and `CloneVolume`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Named {
    pub pool: String,
    pub volume: String,
    pub name: String,
}

/// Parameters of `CreateSnapshots`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Together {
    pub pool: String,
    pub volumes: Vec<String>,
    pub at: String,
}

/// Parameters of `RollbackVolume`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rollback {
    pub pool: String,
    pub volume: String,
    pub snapshot: String,
    #[serde(default)]
    pub force: Option<bool>,
}

/// Parameters of `DeleteVolumes`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delete {
    pub pool: String,
    pub volumes: Vec<String>,
    #[serde(default)]
    pub force: Option<bool>,
}

/// The reply of `DeleteVolumes`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Freed {
    pub freed_bytes: u64,
}

/// Parameters of `MapVolume`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Map {
    pub pool: String,
    pub volume: String,
    pub offset_bytes: u64,
    pub length_bytes: u64,
}

/// Parameters of `CompareVolumes`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compare {
    pub pool: String,
    pub volume: String,
    pub since: String,
    pub offset_bytes: u64,
    pub length_bytes: u64,
}

/// Parameters of `ExportDiff`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportDiff {
    pub pool: String,
    pub volume: String,
    #[serde(default)]
    pub from: Option<String>,
    #[serde(default)]
    pub format: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
}

/// Parameters of `ImportDiff`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportDiff {
    pub pool: String,
    pub volume: String,
    #[serde(default)]
    pub base: Option<String>,
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub force: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
}

/// Parameters of `UpgradePool`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upgrade {
    pub pool: String,
    #[serde(default)]
    pub dry_run: Option<bool>,
}

/// A pool that is open, in the reply of `PlanUpgrade`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradePool {
    pub name: String,
    pub uuid: String,
    pub paths: Vec<String>,
}

/// An export that is served, in the reply of `PlanUpgrade`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradeExport {
    pub name: String,
    pub pool: Option<String>,
    pub volume: Option<String>,
    pub spec: Option<String>,
    pub read_only: bool,
    pub clients: u32,
    pub configured: bool,
    pub in_memory: bool,
}

/// The reply of `PlanUpgrade`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradePlan {
    pub version: String,
    pub state: u64,
    pub pid: u32,
    pub uid: u32,
    pub config: Option<String>,
    pub arguments: Vec<String>,
    pub directory: String,
    pub environment: BTreeMap<String, String>,
    pub listeners: Vec<String>,
    pub pools: Vec<UpgradePool>,
    pub exports: Vec<UpgradeExport>,
    pub clients: u64,
    pub clients_with_tls: u64,
    pub descriptors: u64,
    pub under_way: Vec<String>,
}

/// Parameters of `ImportVolume`. `stream` is sent only when the server could mistake the descriptor for a file or block
/// device, because older servers reject the field.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Import {
    pub pool: String,
    pub volume: String,
    #[serde(default)]
    pub size_bytes: Option<u64>,
    #[serde(default)]
    pub force: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
}

/// Parameters of `ExportVolume`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Export {
    pub pool: String,
    pub volume: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
}

/// Parameters of `ScrubPool`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scrub {
    pub pool: String,
    #[serde(default)]
    pub bytes_per_second: Option<u64>,
}

/// Progress of a long operation.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Progress {
    pub done_bytes: u64,
    pub total_bytes: Option<u64>,
}

/// Parameters of the error `Refused`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Refused {
    pub kind: String,
    pub cause: String,
    pub fix: Option<String>,
}
