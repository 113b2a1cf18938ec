//! A new configuration, while the daemon runs.
//!
//! Pools and exports come and go; what failed to open is tried again. What stays as it was at the start, such as the
//! addresses and the number of threads, is compared with what runs, at each reload: who sees no warning has all of the
//! configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tracing::{error, warn};

use super::{Daemon, Held, Row, locked, open_all};
use crate::config::{ExportPlan, Plan, PoolPlan};
use crate::rights::Rights;
use crate::{failure, tls};

impl Daemon {
    /// Does what a configuration says that is not so yet. Who would act on what cannot be done is told.
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
        // First what goes, so that a pool can move and an export can be of another one.
        let wanted: BTreeMap<&str, &ExportPlan> = plan.exports.iter().map(|own| (own.name.as_str(), own)).collect();
        let is_configured = |row: &Row| wanted.get(row.plan.name.as_str()).is_some_and(|own| row.is(own));
        for row in self.rows().iter().filter(|row| row.configured && !is_configured(row)) {
            if let Err(why) = self.remove_export(&row.plan.name, false) {
                let name = row.plan.name.as_str();
                warn!(event = "export_stays", export = name, "export '{name}' stays: {}", why.in_a_line());
            }
        }
        // Not earlier, while an export that goes may have its name; not later, for opening pools takes its time.
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
        // Thousands of them are looked at once. What a command ends or adds meanwhile is seen below, or was its wish.
        let rows = self.rows();
        let served: BTreeSet<&str> =
            rows.iter().filter(|row| row.failed.is_none()).map(|row| row.plan.name.as_str()).collect();
        let (stay, come): (Vec<_>, Vec<_>) = plan.exports.iter().partition(|own| served.contains(own.name.as_str()));
        self.server.set_limits(&stay.iter().map(|own| (own.name.as_str(), own.limit)).collect());
        for wanted in come {
            if let Err(why) = self.add_export(wanted.clone(), None, Rights::Own, true) {
                let mut rows = locked(&self.exports);
                // A command has added it meanwhile: it is served, whatever else the configuration says of it.
                if rows.iter().any(|row| row.plan.name == wanted.name && row.failed.is_none()) {
                    continue;
                }
                rows.retain(|row| row.plan.name != wanted.name);
                rows.push(Row { plan: wanted.clone(), configured: true, failed: Some(why) });
            }
        }
    }

    /// Sets who may open exports, of those that are served too, so that a volume which comes back after a rollback is
    /// for the same.
    fn set_allowed(&self, plan: &Plan) {
        let allowed: BTreeMap<&str, _> =
            plan.exports.iter().map(|own| (own.name.as_str(), own.allow.clone())).collect();
        let mut rows = locked(&self.exports);
        for row in rows.iter_mut().filter(|row| row.configured) {
            allowed.get(row.plan.name.as_str()).into_iter().for_each(|allow| row.plan.allow = (*allow).clone());
        }
        // What a command has added under a name of the configuration is for whom that says, too.
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

    /// Closes a pool that the configuration does not have any more, unless something of it is served.
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
