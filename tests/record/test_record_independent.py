"""The recorder against an independent forward pass (the library's eager attention, fp32)."""

from __future__ import annotations

import numpy as np
import pytest

from oasis_sim.record import RecordOptions, record

torch = pytest.importorskip("torch", reason="recording needs the extra 'record'")
reference = pytest.importorskip("tests.record.reference", reason="needs the extra 'record'")

BLOCK = 8
STEPS = 20


def options(**changes) -> RecordOptions:
    """Return options for tiny models: small blocks, no perplexity limit to speak of."""
    base = {
        "steps": STEPS,
        "trajectory": "text",
        "block_tokens": BLOCK,
        "draft_budget_tokens": 3 * BLOCK,
        "sink_blocks": 1,
        "recent_blocks": 2,
        "chunk_tokens": 37,
        "max_perplexity": 1e9,
    }
    return RecordOptions(**{**base, **changes})


def visible_blocks(position: int, span: int | None) -> np.ndarray:
    """Return the complete blocks of which a row at a position sees some token."""
    ids = np.arange(position // BLOCK)
    return ids if span is None else ids[(ids + 1) * BLOCK - 1 > position - span]


WINDOWS = {
    "mistral": [41] * 5,
    "gemma3_text": [41, 41, None, 41, None],
    "gemma3_wide": [41, None, 41, None, None],  # 256 dimensions
}
FAMILIES = (
    "llama",
    "mistral",
    "mistral_full",
    "qwen2",
    "qwen3",
    "gemma3_text",
    "gemma3_wide",
    "smollm3",
    "olmo2",
    "phi3",
    "gpt_neox",
    "gpt2",
)


@pytest.mark.parametrize("kind", FAMILIES)
def test_true_rows_agree_with_eager_attention(kind, model_folder, tiny_model, tiny_prompt):
    """Orders are identical but for ties, attention mass is within 1e-4, in every architecture."""
    model = tiny_model(kind)
    prompt = tiny_prompt(model, follow=STEPS + 1)
    got = record(model, prompt, options(drafters=()), name="tiny")
    eager = reference.EagerModel(model_folder(kind))
    trace = got.trace
    _, weights = eager.run([*prompt.tokens, *trace.token[:-1].tolist()])
    spans = trace.meta["layer_span"]
    assert WINDOWS.get(kind, [None] * 5) == spans
    for step, position in enumerate(trace.position):
        for layer in range(trace.layers):
            scores = eager.bounds(layer, position, BLOCK)
            expected_mass = reference.block_sums(
                weights[layer][:, position], eager.heads, BLOCK, trace.mass.shape[-1]
            )
            np.testing.assert_allclose(expected_mass, got.exact_mass[step, layer], atol=1e-4)
            for head in range(trace.kv_heads):
                reference.assert_orders_agree(
                    trace.use_order[step, layer, head],
                    scores[head],
                    visible_blocks(position, spans[layer]),
                )


def sparse_mask(
    orders: np.ndarray, position: int, size: int, settings: RecordOptions, span: int | None
) -> torch.Tensor:
    """Return the additive mask [H, size] of a draft row at position + 1, by plain loops."""
    newest = position // BLOCK - settings.recent_blocks + 1
    mask = torch.full((len(orders), size), -torch.inf)
    if span is not None:
        mask[:, size - span :] = 0.0
        return mask
    for head, order in enumerate(orders):
        candidates = [int(b) for b in order if b != 65535 and settings.sink_blocks <= b < newest]
        attended = {*candidates[: settings.chosen_blocks], *range(settings.sink_blocks)}
        attended |= set(range(newest, size // BLOCK + 1))
        for token in range(size):
            if token // BLOCK in attended:
                mask[head, token] = 0.0
    return mask


def with_last_row(eager, masks: list[torch.Tensor], tokens: list[int], spans: list) -> None:
    """Run tokens; the last one attends by an own additive mask per layer, [H, size]."""
    handles = []
    size = len(tokens)
    causal = torch.full((size, size), -torch.inf).triu(1)
    for number, (layer, mask) in enumerate(zip(eager.stack, masks, strict=True)):
        whole = causal.repeat(eager.heads * eager.group, 1, 1)
        if spans[number] is not None:
            whole += torch.full((size, size), -torch.inf).tril(-spans[number])
        whole[:, -1] = mask.repeat_interleave(eager.group, dim=0)

        def replace(module, args, kwargs, whole=whole):
            return args, {**kwargs, "attention_mask": whole[None]}

        handles.append(layer.self_attn.register_forward_pre_hook(replace, with_kwargs=True))
    try:
        eager.run(tokens)
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize(
    "kind", ["llama", "qwen2", "qwen3", "mistral_full", "gemma3_text", "gemma3_wide"]
)
def test_draft_rows_agree_with_sparse_eager_attention(kind, model_folder, tiny_model, tiny_prompt):
    """Each draft row attends what the row before predicted, per layer and head, and itself."""
    model = tiny_model(kind)
    settings = options(drafters=("ngram",))
    prompt = tiny_prompt(model, follow=STEPS + 1)
    trace = record(model, prompt, settings, name="tiny").trace
    eager = reference.EagerModel(model_folder(kind))
    order, spans = trace.use_order[0], trace.meta["layer_span"]
    for step, position in enumerate(trace.position.tolist()):
        tokens = [*prompt.tokens, *trace.token[: step + 1].tolist()]
        tokens.append(int(trace.draft_token["ngram"][step]))
        masks = [
            sparse_mask(row, position, len(tokens), settings, span)
            for row, span in zip(order, spans, strict=True)
        ]
        with_last_row(eager, masks, tokens, spans)
        order = trace.pred_order["ngram"][step]
        for layer in range(trace.layers):
            scores = eager.bounds(layer, position + 1, BLOCK)
            for head in range(trace.kv_heads):
                reference.assert_orders_agree(
                    order[layer, head], scores[head], visible_blocks(position + 1, spans[layer])
                )


def test_draft_rows_under_a_sliding_window_are_causal_rows(model_folder, tiny_model, tiny_prompt):
    """With a budget for all blocks a draft row sees what its position sees, span included."""
    model = tiny_model("mistral")
    prompt = tiny_prompt(model, follow=STEPS + 1)
    settings = options(drafters=("ngram",), draft_budget_tokens=512)
    trace = record(model, prompt, settings, name="tiny").trace
    eager = reference.EagerModel(model_folder("mistral"))
    for step in (0, 7, STEPS - 1):
        position = int(trace.position[step])
        draft = int(trace.draft_token["ngram"][step])
        eager.run([*prompt.tokens, *trace.token[: step + 1].tolist(), draft])
        for layer in range(trace.layers):
            scores = eager.bounds(layer, position + 1, BLOCK)
            for head in range(trace.kv_heads):
                reference.assert_orders_agree(
                    trace.pred_order["ngram"][step, layer, head],
                    scores[head],
                    visible_blocks(position + 1, 41),
                )


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "gpt2"])
def test_skip_drafts_agree_with_eager_layers_left_out(kind, model_folder, tiny_model, tiny_prompt):
    """The row without some layers reads the whole model's keys and values before it."""
    model = tiny_model(kind)
    prompt = tiny_prompt(model, follow=STEPS + 1)
    trace = record(model, prompt, options(drafters=("skip1-2",)), name="tiny").trace
    eager = reference.EagerModel(model_folder(kind))

    def leave_out(module, inputs, output):
        kept = (output[0] if isinstance(output, tuple) else output).clone()
        kept[:, -1] = inputs[0][:, -1]
        return (kept, *output[1:]) if isinstance(output, tuple) else kept

    for number in (1, 2):
        eager.stack[number].register_forward_hook(leave_out)
    expected = []
    for step in range(STEPS):
        logits, _ = eager.run([*prompt.tokens, *trace.token[: step + 1].tolist()])
        expected.append(int(logits[-1].argmax()))
    assert expected == trace.draft_token["skip1-2"].tolist()


def test_greedy_trajectory_and_perplexity_agree_with_eager(model_folder, tiny_model, tiny_prompt):
    """Greedy tokens are the likeliest ones; perplexity is that of the prompt."""
    model = tiny_model("llama")
    prompt = tiny_prompt(model)
    trace = record(
        model, prompt, options(trajectory="greedy", ignore_eos=True, drafters=()), name="tiny"
    ).trace
    eager = reference.EagerModel(model_folder("llama"))
    logits, _ = eager.run([*prompt.tokens, *trace.token[:-1].tolist()])
    logits[:, 0] = -np.inf
    expected = logits[len(prompt.tokens) - 1 :].argmax(axis=-1)
    assert expected.tolist() == trace.token.tolist()
    whole, _ = eager.run(list(prompt.tokens))
    log_shares = torch.log_softmax(torch.tensor(whole), dim=-1)[:-1]
    loss = -log_shares[range(len(log_shares)), list(prompt.tokens[1:])].mean()
    assert float(loss.exp()) == pytest.approx(trace.meta["text"]["perplexity"], rel=1e-3)
