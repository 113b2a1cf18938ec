//! `listen`: an address, optionally with mode, owner and group of its unix socket.

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor, value::MapAccessDeserializer};
use sheave_serve::{Address, SocketAccess};

use super::allow::Id;
use crate::value;

/// Default mode of a unix socket for which an owner or group is set: both may connect.
const BOTH: u32 = 0o660;

/// An entry of `listen`: a string with the address, or a table.
#[derive(Clone, Debug)]
pub(super) struct ListenEntry(ListenTable);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListenTable {
    address: String,
    mode: Option<String>,
    owner: Option<Id>,
    group: Option<Id>,
}

impl<'de> Deserialize<'de> for ListenEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ListenEntry, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = ListenEntry;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an address, or { address = \"unix:PATH\", mode = \"0660\", group = \"NAME\" }")
            }

            fn visit_str<E: Error>(self, address: &str) -> Result<ListenEntry, E> {
                Ok(ListenEntry(ListenTable { address: address.into(), ..ListenTable::default() }))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ListenEntry, A::Error> {
                ListenTable::deserialize(MapAccessDeserializer::new(map)).map(ListenEntry)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl ListenEntry {
    /// Parses the entry. Returns the address, and the access settings if it has any.
    pub(super) fn meaning(&self) -> Result<(Address, Option<SocketAccess>), String> {
        let ListenTable { address, mode, owner, group } = &self.0;
        let address: Address = address.parse().map_err(|why| format!("{why}"))?;
        if mode.is_none() && owner.is_none() && group.is_none() {
            return Ok((address, None));
        }
        if matches!(address, Address::Tcp(_)) {
            return Err(format!("{address} has no mode, owner or group: these are of unix sockets"));
        }
        let access = SocketAccess {
            mode: mode.as_deref().map_or(Ok(BOTH), value::mode)?,
            owner: owner.as_ref().map(Id::user).transpose()?,
            group: group.as_ref().map(Id::group).transpose()?,
        };
        Ok((address, Some(access)))
    }
}

/// Builds the access settings of unix sockets from options of the command line; `None` if none is given.
///
/// # Errors
///
/// The user or group does not exist.
pub fn access(mode: Option<u32>, owner: Option<&str>, group: Option<&str>) -> Result<Option<SocketAccess>, String> {
    if mode.is_none() && owner.is_none() && group.is_none() {
        return Ok(None);
    }
    let id = |name: &str| Id::Name(name.into());
    Ok(Some(SocketAccess {
        mode: mode.unwrap_or(BOTH),
        owner: owner.map(|name| id(name).user()).transpose()?,
        group: group.map(|name| id(name).group()).transpose()?,
    }))
}
