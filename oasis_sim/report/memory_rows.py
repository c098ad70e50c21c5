"""What the result table says about memory: capacities in GiB, as drivers report them."""

from __future__ import annotations

from oasis_sim.report.numbers import count, counted, gibibytes, percent
from oasis_sim.report.row import Row, Summary

LIMITS = {
    "concurrency": "concurrency",
    "requests": "requests",
    "arrivals": "arrivals",
    "prefill": "prefill",
    "prefill_nodes": "prefill nodes",
    "hbm": "HBM pool",
    "host": "host memory",
}

SPARSE_PARTS = (
    ("working set", "working_set_bytes"),
    ("index of keys", "compressed_keys_bytes"),
    ("draft KV", "draft_kv_bytes"),
)
HELD_UP = {
    "concurrency": "clients were at their limit",
    "arrivals": "no request waited",
    "prefill": "requests waited for prefill",
    "prefill_nodes": "requests waited for one",
    "hbm": "it refused the next request",
    "host": "it refused the next request",
}


def batch_limit(summary: Summary) -> Row:
    """Name what keeps the batch from growing, beside how many requests each memory holds."""
    scenario, tiers = summary["scenario"], summary["tiers"]
    host_fit = tiers["host"]["requests_that_fit"]
    parts = [f"HBM pool: {_fit(tiers['hbm']['requests_that_fit'], summary)}"]
    if host_fit is not None:
        parts.insert(0, f"host memory: {_fit(host_fit, summary)}")
    if summary["batch_limit"] in HELD_UP:
        share = percent(summary["batch_limit_share_of_time"])
        parts.insert(0, f"{share} of the time {HELD_UP[summary['batch_limit']]}")
    if scenario["concurrency"] is None:
        parts.append("no limit of concurrency")
    else:
        parts.append(f"concurrency: {count(scenario['concurrency'])}")
    if summary["batch_limit"] == "requests":
        parts.append(f"{counted(scenario['requests'], 'request')} in all")
    return Row("Batch limited by", LIMITS[summary["batch_limit"]], "; ".join(parts))


def memory(summary: Summary) -> tuple[Row, ...]:
    """Return what lies in HBM and in host memory, and what one request takes of each."""
    hbm = summary["tiers"]["hbm"]
    usable, weights = gibibytes(hbm["usable_bytes"]), gibibytes(hbm["weights_bytes"])
    reserved = gibibytes(hbm["reserved_bytes"])
    return (
        Row(
            "HBM at peak",
            gibibytes(hbm["peak_bytes"]),
            f"weights {weights} + reserved {reserved} + KV {gibibytes(hbm['peak_kv_bytes'])}; "
            f"usable {usable} of {gibibytes(hbm['capacity_bytes'])}",
        ),
        Row(
            "KV pool",
            gibibytes(hbm["kv_pool_bytes"]),
            f"usable {usable} - weights {weights} - reserved {reserved}",
        ),
        _dense(summary),
        *_sparse(summary),
        *_host(summary),
    )


def _fit(requests: int, summary: Summary) -> str:
    of = "" if _all_alike(summary) else " of the longest request"
    return f"{count(requests)}{of} {'fits' if requests == 1 else 'fit'}"


def whose(summary: Summary) -> str:
    """Name the request whose sizes are given: requests may differ in length."""
    return "a request" if _all_alike(summary) else "the longest request"


def _all_alike(summary: Summary) -> bool:
    load = summary["scenario"]["workload"]
    ranges = (load["prompt_tokens"], load["output_tokens"])
    return all(tokens["min"] == tokens["max"] for tokens in ranges)


def _dense(summary: Summary) -> Row:
    scenario, hbm = summary["scenario"], summary["tiers"]["hbm"]
    size = hbm["dense_request_bytes"]
    fit = hbm["kv_pool_bytes"] // max(size, 1)
    draft = ", its draft KV" if hbm["sparse_request_parts"]["draft_kv_bytes"] else ""
    detail = f"{whose(summary)} with all its KV{draft} and one block to spare; {_fit(fit, summary)}"
    if scenario["offload"] and scenario["offload_at"] != "layer":
        detail += "; prefill needs the whole prompt in HBM like this"
    return Row("Request, dense", gibibytes(size), detail)


def _sparse(summary: Summary) -> tuple[Row, ...]:
    """Say what a request keeps in HBM once its KV is in host memory, if any request got there."""
    hbm = summary["tiers"]["hbm"]
    size, parts = hbm["sparse_request_bytes"], hbm["sparse_request_parts"]
    if not summary["scenario"]["offload"] or hbm["decode_request_bytes"] != size:
        return ()
    detail = (
        f"{whose(summary)} as it decodes: "
        + " + ".join(
            f"{name} {gibibytes(parts[key])}"
            for name, key in SPARSE_PARTS
            if parts[key] or key == "working_set_bytes"
        )
        + f"; {_fit(hbm['requests_that_fit'], summary)}"
    )
    return (Row("Request, sparse", gibibytes(size), detail),)


def _host(summary: Summary) -> tuple[Row, ...]:
    host = summary["tiers"]["host"]
    if not summary["scenario"]["offload"]:
        return ()
    detail = (
        f"of {gibibytes(host['capacity_bytes'])} pinned for KV; "
        f"{gibibytes(host['request_bytes'])} for {whose(summary)}"
    )
    if host["requests_that_fit"] is not None:
        detail += f"; {_fit(host['requests_that_fit'], summary)}"
    return (Row("Host at peak", gibibytes(host["peak_bytes"]), detail),)
