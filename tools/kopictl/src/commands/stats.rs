// SPDX-License-Identifier: GPL-2.0

//! `kopictl stats`

use crate::{
    attributes::{Row, Set},
    message::{stats::Totals, Command},
    netlink::Connection,
    output::{json, Table},
};

/// Shows sums.
pub(crate) fn run(as_json: bool) -> anyhow::Result<()> {
    let totals: Totals = Connection::open()?.get(Command::TotalsGet, &Totals::default())?;
    if as_json {
        return json(&totals);
    }
    let mut table = Table::new(["COUNTER", ">VALUE", "MEANING"]);
    for Row {
        attribute, text, ..
    } in totals
        .rows()
        .into_iter()
        .chain(totals.stats.unwrap_or_default().rows())
    {
        table.row([attribute.spec_name(), text, attribute.doc.trim().to_owned()]);
    }
    Ok(table.print()?)
}
