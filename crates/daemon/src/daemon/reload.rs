//! Reload of the configuration while the daemon runs.
//!
//! Pools and exports are added and removed, and those that failed to open are tried again. Settings that are fixed at
//! the start, such as addresses and the number of threads, are compared with the running values on every reload:
//! without a warning, all of the configuration is in effect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tracing::{error, warn};

use super::{Daemon, Held, Row, locked, open_all};
use crate::config::{ExportPlan, Plan, PoolPlan};
use crate::rights::Rights;
use crate::{failure, tls};

impl Daemon {
    /// Brings the daemon to the state that `plan` describes. Problems are logged and do not stop the reload.
    pub fn reload(&self, plan: &Plan) {
        let wanted = plan.fixed();
        let others = self.started.iter().zip(&wanted).filter(|(runs, wanted)| runs != wanted);
        let keys = others.map(|((key, _), _)| *key).collect::<Vec<_>>().join(", ");
        locked(&self.restart_keys).clone_from(&keys);
        if !keys.is_empty() {
            warn!(
                event = "restart_needed",
                keys, "the daemon runs with another value of {keys} than the configuration has: restart it"
            );
        }
        self.server.set_slow_limit(plan.slow_limit);
        self.reload_tls(plan);
        // Removals come first, so that a pool can move and an export name can be reused.
        let wanted: BTreeMap<&str, &ExportPlan> = plan.exports.iter().map(|own| (own.name.as_str(), own)).collect();
        let is_configured = |row: &Row| wanted.get(row.plan.name.as_str()).is_some_and(|own| row.is(own));
        for row in self.rows().iter().filter(|row| row.configured && !is_configured(row)) {
            if let Err(why) = self.remove_export(&row.plan.name, false) {
                let name = row.plan.name.as_str();
                warn!(event = "export_stays", export = name, "export '{name}' stays: {}", why.in_a_line());
            }
        }
        // Set after the removals, since a removed export may have the same name, and before pools are opened, which may
        // take long.
        self.server.set_default_export(plan.default_export());
        for held in self.pools() {
            let is_open = held.failed().is_none() || held.is_waited_for();
            if !plan.pools.iter().any(|wanted| held.is(wanted)) || !is_open {
                self.let_go(&held);
            } else {
                held.tell_beyond_search();
            }
        }
        let have: Vec<PoolPlan> = self.pools().iter().map(|held| held.plan.clone()).collect();
        let names: Vec<&String> = have.iter().map(|plan| &plan.name).collect();
        let new: Vec<PoolPlan> = plan.pools.iter().filter(|plan| !names.contains(&&plan.name)).cloned().collect();
        for held in open_all(&new) {
            locked(&self.pools).insert(held.plan.name.clone(), Arc::new(held));
        }
        self.set_allowed(plan);
        // One snapshot of the list, since there may be thousands of exports. An export that a command removes or adds
        // meanwhile is handled below, or was meant to stay as the command left it.
        let rows = self.rows();
        let served: BTreeSet<&str> =
            rows.iter().filter(|row| row.failed.is_none()).map(|row| row.plan.name.as_str()).collect();
        let (stay, come): (Vec<_>, Vec<_>) = plan.exports.iter().partition(|own| served.contains(own.name.as_str()));
        self.server.set_limits(&stay.iter().map(|own| (own.name.as_str(), own.limit)).collect());
        for wanted in come {
            if let Err(why) = self.add_export(wanted.clone(), None, Rights::Own, true) {
                let mut rows = locked(&self.exports);
                // A command added an export of that name meanwhile. It stays, even if the configuration describes it
                // differently.
                if rows.iter().any(|row| row.plan.name == wanted.name && row.failed.is_none()) {
                    continue;
                }
                rows.retain(|row| row.plan.name != wanted.name);
                rows.push(Row { plan: wanted.clone(), configured: true, failed: Some(why) });
            }
        }
    }

    /// Sets the access rules of all exports, including those already served, so that a volume which is served again
    /// after a rollback has the new rules too.
    fn set_allowed(&self, plan: &Plan) {
        let allowed: BTreeMap<&str, _> =
            plan.exports.iter().map(|own| (own.name.as_str(), own.allow.clone())).collect();
        let mut rows = locked(&self.exports);
        for row in rows.iter_mut().filter(|row| row.configured) {
            allowed.get(row.plan.name.as_str()).into_iter().for_each(|allow| row.plan.allow = (*allow).clone());
        }
        // Rules of the configuration also apply to an export that a command added under a configured name.
        let keep = self.server.set_allowed(&allowed);
        drop(rows);
        for client in keep {
            let (id, export) = (client.id, client.export.unwrap_or_default());
            warn!(
                event = "client_stays",
                client = id,
                export,
                "client {id} ({}) keeps the export '{export}', which it may not open any more: 'sheave client \
                 disconnect {id}' ends that",
                client.peer
            );
        }
    }

    fn reload_tls(&self, plan: &Plan) {
        let listeners = self.server.listeners();
        if let Err(why) = tls::load(&plan.tls).and_then(|loaded| tls::set(listeners, &loaded, &plan.listen)) {
            error!(event = "tls_stays", "TLS stays as it was: {}", why.in_a_line());
        }
    }

    /// Removes a pool that is no longer in the configuration, or that failed and is to be opened again, unless a volume
    /// of it is served.
    fn let_go(&self, held: &Arc<Held>) {
        let _turn = held.turn();
        let is_of = |row: &Row| row.failed.is_none() && row.plan.volume_of(&held.plan.name).is_some();
        if locked(&self.exports).iter().any(is_of) {
            let name = held.plan.name.as_str();
            warn!(event = "pool_stays", pool = name, "pool '{name}' stays: volumes of it are served");
            return;
        }
        if let Ok(pool) = held.pool()
            && let Err(why) = pool.clone().close().map_err(failure::pool)
        {
            let name = held.plan.name.as_str();
            warn!(event = "pool_stays", pool = name, "pool '{name}' stays: {}", why.in_a_line());
            return;
        }
        locked(&self.pools).remove(&held.plan.name);
    }
}
