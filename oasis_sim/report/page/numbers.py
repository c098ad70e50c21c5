"""The numbers of a report as CSV: every table of it, with the values as they are known."""

from __future__ import annotations

from oasis_sim.report.csvfile import write_rows
from oasis_sim.report.page.document import Report, Table


def table_csv(table: Table) -> str:
    """Return one table."""
    rows = [[cell.value for cell in row] for row in table.rows]
    return write_rows([table.header, *rows])


def report_csv(report: Report) -> str:
    """Return all tables, a line for each cell: table, row, column, value."""
    lines = [
        (table.name, row[0].value, column, cell.value)
        for section in report.sections
        for table in section.all_tables()
        for row in table.rows
        for column, cell in zip(table.header[1:], row[1:], strict=True)
    ]
    return write_rows([("table", "row", "column", "value"), *lines])
