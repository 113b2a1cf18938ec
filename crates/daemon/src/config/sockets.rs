//! `vhost_user` of an export: the path of its socket, optionally with mode, owner and group; and the other keys of the
//! device.
//!
//! K1. No two parts of a configuration have the same socket: neither two exports, nor an export and an address of
//! `listen`, nor an export and the control socket.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::Deserializer;
use sheave_serve::{Address, SocketAccess, vhost_user};

use super::allow::Id;
use super::{Control, ExportTable, listen};
use crate::value;
use crate::vhost_user::VhostUserPlan;

/// Value of `vhost_user`: a string with the path, or a table.
#[derive(Clone, Debug)]
pub(super) struct SocketEntry(SocketTable);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SocketTable {
    path: String,
    mode: Option<String>,
    owner: Option<Id>,
    group: Option<Id>,
}

impl<'de> Deserialize<'de> for SocketEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SocketEntry, D::Error> {
        let expected = "a path, or { path = \"PATH\", mode = \"0660\", group = \"NAME\" }";
        let of_text = |path: &str| SocketTable { path: path.into(), ..SocketTable::default() };
        listen::text_or_table(deserializer, expected, of_text).map(SocketEntry)
    }
}

impl SocketEntry {
    fn meaning(&self) -> Result<(PathBuf, Option<SocketAccess>), String> {
        let SocketTable { path, mode, owner, group } = &self.0;
        let access = listen::access_of(mode.as_deref(), owner.as_ref(), group.as_ref())?;
        Ok((value::socket_path(path)?, access))
    }
}

/// The sockets of a configuration, by their absolute paths, with the name of their user (K1).
pub(super) struct Sockets<'a> {
    listen: &'a [Address],
    taken: BTreeMap<PathBuf, String>,
}

impl<'a> Sockets<'a> {
    pub(super) fn new(listen: &'a [Address], control: Option<&Control>) -> Sockets<'a> {
        let nbd = listen.iter().filter_map(|address| match address {
            Address::Unix(path) => Some((absolute(path), "listen of NBD".to_owned())),
            Address::Tcp(_) => None,
        });
        let control = control.map(|control| (absolute(&control.path), "the control socket".to_owned()));
        Sockets { listen, taken: nbd.chain(control).collect() }
    }

    /// Returns the addresses of NBD.
    pub(super) fn listen(&self) -> &'a [Address] {
        self.listen
    }

    /// Records that this export has the socket. Fails if the socket has another user (K1).
    pub(super) fn take(&mut self, path: &Path, export: &str) -> Result<(), String> {
        match self.taken.insert(absolute(path), format!("the export '{export}'")) {
            None => Ok(()),
            Some(user) => Err(format!("{} is used already, by {user}", path.display())),
        }
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

impl ExportTable {
    /// Parses the keys of the vhost-user device of the export that is called `name`. An error has its offset in the
    /// file.
    pub(super) fn vhost_user(
        &self,
        name: &str,
        sockets: &mut Sockets<'_>,
    ) -> Result<Option<VhostUserPlan>, (usize, String)> {
        let Some(entry) = &self.vhost_user else {
            let queues = self.vhost_queues.as_ref().map(|queues| ("vhost_queues", queues.span().start));
            let in_order = self.vhost_in_order.as_ref().map(|in_order| ("vhost_in_order", in_order.span().start));
            return match queues.or(in_order) {
                Some((key, at)) => Err((at, format!("{key} is of an export with vhost_user = \"PATH\""))),
                None => Ok(None),
            };
        };
        let at = entry.span().start;
        let (path, access) = entry.get_ref().meaning().map_err(|why| (at, format!("vhost_user: {why}")))?;
        let queues = self.vhost_queues.as_ref();
        if let Some(queues) = queues.filter(|queues| !(1..=vhost_user::MAX_QUEUES).contains(queues.get_ref())) {
            return Err((queues.span().start, format!("vhost_queues are 1 to {}", vhost_user::MAX_QUEUES)));
        }
        sockets.take(&path, name).map_err(|why| (at, format!("vhost_user: {why}")))?;
        let in_order = self.vhost_in_order.as_ref().is_some_and(|in_order| *in_order.get_ref());
        let queues = queues.map(|queues| *queues.get_ref());
        Ok(Some(VhostUserPlan { path, access, queues, in_order, passed: None }))
    }
}
