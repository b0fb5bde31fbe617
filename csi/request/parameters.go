package request

import (
	"maps"
	"strings"
)

// Keys that Kubernetes puts beside the plugin's own.
const (
	reservedPrefix = "csi.storage.k8s.io/"
	keyFSType      = reservedPrefix + "fstype"
	keyEphemeral   = reservedPrefix + "ephemeral"
	// keyShortFSType is the older, still common spelling of keyFSType.
	keyShortFSType = "fsType"
	keySize        = "size"
)

// ownKeys returns the entries that are not an orchestrator's own.
func ownKeys(m map[string]string) map[string]string {
	own := maps.Clone(m)
	maps.DeleteFunc(own, func(k, _ string) bool { return strings.HasPrefix(k, reservedPrefix) })
	return own
}

// takeFSType removes the file system type from parameters and returns it; it
// must not contradict what the capabilities ask for.
func takeFSType(field string, parameters map[string]string, wished string) (string, error) {
	for _, key := range []string{keyFSType, keyShortFSType} {
		t := parameters[key]
		delete(parameters, key)
		if err := checkFSType(field+"["+key+"]", t); err != nil {
			return "", err
		}
		switch {
		case t == "" || t == wished:
		case wished == "":
			wished = t
		default:
			return "", invalidf("%s[%s] is %s, but %s is asked for elsewhere in the request", field, key, t, wished)
		}
	}
	return wished, nil
}
