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
        let expected = "an address, or { address = \"unix:PATH\", mode = \"0660\", group = \"NAME\" }";
        let of_text = |address: &str| ListenTable { address: address.into(), ..ListenTable::default() };
        text_or_table(deserializer, expected, of_text).map(ListenEntry)
    }
}

/// Deserializes a table, or a text that stands for one. `expected` describes both, for errors.
pub(super) fn text_or_table<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
    expected: &'static str,
    of_text: fn(&str) -> T,
) -> Result<T, D::Error> {
    struct Either<T> {
        expected: &'static str,
        of_text: fn(&str) -> T,
    }
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
        type Value = T;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.expected)
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
            Ok((self.of_text)(text))
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map))
        }
    }
    deserializer.deserialize_any(Either { expected, of_text })
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
        Ok((address, access_of(mode.as_deref(), owner.as_ref(), group.as_ref())?))
    }
}

/// Builds the access settings of a unix socket from keys of the configuration; `None` if none is given.
pub(super) fn access_of(
    mode: Option<&str>,
    owner: Option<&Id>,
    group: Option<&Id>,
) -> Result<Option<SocketAccess>, String> {
    if mode.is_none() && owner.is_none() && group.is_none() {
        return Ok(None);
    }
    Ok(Some(SocketAccess {
        mode: mode.map_or(Ok(BOTH), value::mode)?,
        owner: owner.map(Id::user).transpose()?,
        group: group.map(Id::group).transpose()?,
    }))
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
