package sim

import (
	"fmt"
	"strings"
)

// Dialect is how a release of SGLang reports. The keys of the speculative counters
// were renamed three times, mostly without keeping the old names (hazard 1).
type Dialect struct {
	// Name is the release that reports so.
	Name string

	// proposed and correct list every key that carries the count; none means that
	// the release reports spec_verify_ct alone, and always.
	proposed, correct []string
	histogram         []string
	// retractions is the key of the retraction count, "" = not reported.
	retractions string
	// reasoning says that reasoning_tokens is reported.
	reasoning bool
	// spans says that weight_versions is reported.
	spans bool
	// bareQueueAbort: a request aborted in the queue has no output_ids, no weight
	// version and a prompt of 0 tokens (hazard 9).
	bareQueueAbort bool
	// lacks lists the paths that the release does not have.
	lacks []string
	// weightVersionRoute says that /get_weight_version answers.
	weightVersionRoute bool
	// chatIDs says that chat completions take input_ids and return meta_info;
	// older ones ignore both without a word.
	chatIDs bool
	// loadTotals and loadPending say that /v1/loads has sums over the ranks, and
	// counts the tokens of waiting requests.
	loadTotals, loadPending bool
	// tokenizeMessages says that /v1/tokenize renders messages.
	tokenizeMessages bool
}

// LatestDialect is the default of an engine.
const LatestDialect = "0.5.23"

// dialects are ordered by age. What they say was read from those releases.
var dialects = []Dialect{
	{
		Name:           "0.5.3",
		bareQueueAbort: true, weightVersionRoute: true, loadTotals: true,
		lacks: []string{"/model_info", "/server_info", "/weight_version", "/tokenize", "/v1/tokenize", "/v1/loads"},
	},
	{
		Name:      "0.5.10",
		proposed:  []string{"spec_draft_token_num"},
		correct:   []string{"spec_accept_token_num"},
		histogram: []string{"spec_accept_histogram"}, retractions: "total_retractions", reasoning: true,
		loadTotals: true,
	},
	{
		Name:      "0.5.11",
		proposed:  []string{"spec_proposed_drafts"},
		correct:   []string{"spec_accepted_drafts"},
		histogram: []string{"spec_accept_histogram"}, retractions: "total_retractions", reasoning: true,
		loadTotals: true, loadPending: true,
	},
	{
		Name:      "0.5.12",
		proposed:  []string{"spec_num_proposed_drafts", "spec_proposed_drafts"},
		correct:   []string{"spec_num_correct_drafts", "spec_accepted_drafts"},
		histogram: []string{"spec_correct_drafts_histogram", "spec_accept_histogram"}, retractions: "num_retractions", reasoning: true,
		loadTotals: true, loadPending: true, tokenizeMessages: true,
	},
	{
		Name:      LatestDialect,
		proposed:  []string{"spec_num_proposed_drafts"},
		correct:   []string{"spec_num_correct_drafts"},
		histogram: []string{"spec_correct_drafts_histogram"}, retractions: "num_retractions", reasoning: true,
		lacks: []string{"/get_load", "/get_weight_version", "/weight_version"},
		spans: true, chatIDs: true, loadPending: true, tokenizeMessages: true,
	},
}

// DialectNamed finds a dialect; "" is the latest.
func DialectNamed(name string) (Dialect, error) {
	if name == "" {
		name = LatestDialect
	}
	var names []string
	for _, d := range dialects {
		if d.Name == name {
			return d, nil
		}
		names = append(names, d.Name)
	}
	return Dialect{}, fmt.Errorf("there is no dialect %q: choose one of %s", name, strings.Join(names, ", "))
}
