package pool

// maxKeys is how many routing keys are remembered at least.
const maxKeys = 1 << 15

// affinity remembers which engine served a routing key last. It forgets the
// oldest keys by halves: a key that is used stays.
type affinity struct {
	young, old map[string]string
}

func (a *affinity) get(key string) string {
	if key == "" {
		return ""
	}
	if id, ok := a.young[key]; ok {
		return id
	}
	return a.old[key]
}

func (a *affinity) set(key, id string) {
	if key == "" {
		return
	}
	if len(a.young) >= maxKeys || a.young == nil {
		a.young, a.old = make(map[string]string), a.young
	}
	a.young[key] = id
}
