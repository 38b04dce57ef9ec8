"""Holds a record of exchanges against the models of one SGLang release.

    check.py RELEASE FOLDER RECORD

Every field that was sent has to exist in the release's request model, the model
has to take the request, and every reply of the simulated engine has to parse in
the response model, or, where the release answers a plain dictionary, to have no
key that the release's sources do not know. Exits 1 with a line per violation.
"""

import dataclasses
import json
import sys

from pydantic import TypeAdapter, ValidationError

from releases import Release

# Keys that say that the engine is a simulation: no release has them.
OWN_KEYS = {"simulation"}


class Tokenizer:
    """As much of a tokenizer as the normalisation of stop strings needs."""

    def encode(self, text, add_special_tokens=True):
        return list(text.encode())


class Checker:
    def __init__(self, release, name):
        self.release, self.name = release, name
        self.problems, self.checked = [], 0

    def problem(self, entry, text):
        self.problems.append(f"{self.name} {entry['path']}: {text}")

    def fields(self, model):
        if dataclasses.is_dataclass(model):
            return {f.name for f in dataclasses.fields(model)}
        if hasattr(model, "__struct_fields__"):
            return set(model.__struct_fields__)
        return set(model.model_fields)

    def parse(self, entry, model, body, what):
        unknown = set(body) - self.fields(model)
        if unknown:
            self.problem(entry, f"{what} has {sorted(unknown)}, which {model.__name__} does not")
        try:
            return TypeAdapter(model).validate_python(body)
        except ValidationError as error:
            self.problem(entry, f"{what} is not a {model.__name__}: {error}")
            return None

    def generate(self, entry, body):
        request = self.parse(entry, self.release.io.GenerateReqInput, body, "the request")
        params = body.get("sampling_params", {})
        try:
            sampling = self.release.sampling.SamplingParams(**params)
            sampling.normalize(Tokenizer())
            sampling.verify(272)
        except (TypeError, ValueError) as error:
            self.problem(entry, f"the sampling parameters are refused: {error}")
        if request is not None and entry["status"] == 200:
            request.normalize_batch_and_arguments()

    def known_keys(self, entry, value, where):
        """Every key of a plain dictionary has to occur in the sources."""
        if isinstance(value, dict):
            for key, inner in value.items():
                if key not in OWN_KEYS and not self.release.mentions(key):
                    self.problem(entry, f"{where} has the key {key}, which the release does not know")
                self.known_keys(entry, inner, where)
        elif isinstance(value, list):
            for inner in value:
                self.known_keys(entry, inner, where)

    def request(self, entry):
        try:
            body = json.loads(entry["request"])
        except ValueError:
            return
        io, openai = self.release.io, self.release.openai
        models = {
            "/abort_request": io.AbortReq,
            "/pause_generation": io.PauseGenerationReqInput,
            "/continue_generation": io.ContinueGenerationReqInput,
            "/update_weights_from_disk": io.UpdateWeightFromDiskReqInput,
            "/update_weight_version": io.UpdateWeightVersionReqInput,
            "/release_memory_occupation": io.ReleaseMemoryOccupationReqInput,
            "/resume_memory_occupation": io.ResumeMemoryOccupationReqInput,
            "/tokenize": openai.TokenizeRequest,
            "/v1/tokenize": openai.TokenizeRequest,
            "/v1/chat/completions": openai.ChatCompletionRequest,
        }
        if entry["path"] == "/generate":
            self.generate(entry, body)
        elif entry["path"] in models:
            model = models[entry["path"]]
            if entry["path"] == "/v1/chat/completions" and "return_meta_info" not in self.fields(model):
                for key in ("input_ids", "return_meta_info", "return_prompt_token_ids"):
                    body.pop(key, None)  # sent to newer releases only
            if entry["status"] == 200:
                self.parse(entry, model, body, "the request")

    def response(self, entry):
        openai = self.release.openai
        answers = [entry["response"]]
        if entry["response"].startswith("data: "):
            answers = [line[6:] for line in entry["response"].split("\n") if line.startswith("data: ") and line != "data: [DONE]"]
        for answer in answers:
            try:
                body = json.loads(answer)
            except ValueError:
                continue
            if entry["status"] != 200:
                if "error" in body:
                    if not isinstance(body["error"].get("message"), str):
                        self.problem(entry, f"an error without a message: {answer}")
                elif "success" in body:
                    self.known_keys(entry, body, "the error")
                else:
                    self.parse(entry, openai.ErrorResponse, body, "the error")
            elif entry["path"] == "/v1/chat/completions":
                kind = {
                    "chat.completion": openai.ChatCompletionResponse,
                    "chat.completion.chunk": openai.ChatCompletionStreamResponse,
                }[body["object"]]
                self.parse(entry, kind, body, "the reply")
                self.known_keys(entry, body["choices"], "the reply")
            elif entry["path"].endswith("tokenize"):
                self.parse(entry, openai.TokenizeResponse, body, "the reply")
            elif entry["path"] == "/v1/models":
                self.parse(entry, openai.ModelList, body, "the reply")
            else:
                self.known_keys(entry, body, "the reply")


def main():
    name, folder, record = sys.argv[1:]
    checker = Checker(Release(folder), name)
    with open(record) as lines:
        for line in lines:
            entry = json.loads(line)
            if entry["release"] == name:
                checker.request(entry)
                checker.response(entry)
                checker.checked += 1
    for problem in sorted(set(checker.problems)):
        print(problem)
    print(f"{name}: {checker.checked} exchanges, {len(set(checker.problems))} problems")
    sys.exit(1 if checker.problems or not checker.checked else 0)


if __name__ == "__main__":
    main()
