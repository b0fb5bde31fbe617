package spdk

import (
	"encoding/json"
	"slices"
	"strings"
)

// sensitive are parts of the names of parameters whose values are secret, or
// whose names of keys are nobody's business but the process's.
var sensitive = [...]string{"psk", "key", "secret", "password", "passphrase", "token"}

// plain are names that hold such a part and no secret: key files are known by
// name and path, and hunting for a mistake in them needs both.
var plain = [...]string{"key_file", "keyfile"}

// redact takes the secrets among the parameters of a request out of a text that
// the process made of them.
func redact(text string, params []byte) string {
	if text == "" || len(params) == 0 {
		return text
	}
	var tree any
	if json.Unmarshal(params, &tree) != nil {
		return text
	}
	found := secrets(tree, false, nil)
	slices.SortFunc(found, func(a, b string) int { return len(b) - len(a) }) // a part of another comes later
	for _, s := range found {
		text = strings.ReplaceAll(text, s, "***")
	}
	return text
}

// secrets collects the strings below sensitive names.
func secrets(tree any, below bool, found []string) []string {
	switch v := tree.(type) {
	case string:
		if below && v != "" {
			found = append(found, v)
		}
	case []any:
		for _, e := range v {
			found = secrets(e, below, found)
		}
	case map[string]any:
		for name, e := range v {
			found = secrets(e, below || isSensitive(name), found)
		}
	}
	return found
}

func isSensitive(name string) bool {
	name = strings.ToLower(name)
	if slices.Contains(plain[:], name) {
		return false
	}
	return slices.ContainsFunc(sensitive[:], func(part string) bool { return strings.Contains(name, part) })
}
