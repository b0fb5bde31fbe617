package request

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// Parameters with a meaning. All others only identify the caller.
const (
	reservedPrefix = "fence.cleat.dev/"
	// EndingHeader has the sessions that fences wait for, one text per session,
	// in ListClusterFence's response.
	EndingHeader = "cleat-ending-bin"
	// ForceParameter, "true", allows blocks that cover this server's own
	// addresses or all addresses. The owner does not include it.
	ForceParameter = reservedPrefix + "force"
	// RestartedParameter, "true", confirms that the clients were restarted, or are
	// off, when they are unfenced. The owner does not include it.
	RestartedParameter = reservedPrefix + "restarted"
	// UnseenHeader has the fenced clients that can be unfenced only so, one text
	// per client, in ListClusterFence's response.
	UnseenHeader = "cleat-unseen-bin"
	// OwnerParameter and ViaParameter replace the caller's parameters in
	// forwarded fences: their digest, and the forwarding server's name.
	OwnerParameter = reservedPrefix + "owner"
	ViaParameter   = reservedPrefix + "via"
)

// maxMap bounds keys and values of a map in bytes, as CSI does by default.
const maxMap = 4096

func checkParameters(m map[string]string) error {
	size := 0
	for key, value := range m {
		size += len(key) + len(value)
	}
	if size > maxMap {
		return invalidf("parameters has %d bytes of keys and values, at most %d are allowed", size, maxMap)
	}
	var wrong findings
	for _, key := range slices.Sorted(maps.Keys(m)) {
		checkReserved(&wrong, key, m[key])
	}
	return wrong.err()
}

// checkReserved keeps values of the caller's own parameters, which can be
// secret, out of messages.
func checkReserved(wrong *findings, key, value string) {
	switch {
	case key == ForceParameter, key == RestartedParameter:
		if value != "true" && value != "false" {
			wrong.add("parameters[%s] is %s: it must be true or false", key, errs.Quote(value))
		}
	case key == OwnerParameter:
		if digest, err := hex.DecodeString(value); err != nil || len(digest) != sha256.Size || value != strings.ToLower(value) {
			wrong.add("parameters[%s] is %s: it must be a SHA-256 in lower-case hex, %d digits", key, errs.Quote(value), 2*sha256.Size)
		}
	case key == ViaParameter:
		if value == "" {
			wrong.add("parameters[%s] is empty: it must be the name of the server that forwards the request", key)
		}
	case strings.HasPrefix(strings.ToLower(key), reservedPrefix):
		known := []string{ForceParameter, RestartedParameter, OwnerParameter, ViaParameter}
		if n := errs.Nearest(strings.ToLower(key), known); n != "" {
			wrong.add("unknown parameter %s; did you mean %s?", errs.Quote(key), n)
		} else {
			wrong.add("unknown parameter %s: those that begin with %s are %s", errs.Quote(key), reservedPrefix, strings.Join(known, ", "))
		}
	}
}

// Owner is the digest of a request's parameters except ForceParameter and
// RestartedParameter.
func Owner(parameters map[string]string) volume.FenceOwner {
	keys := slices.Sorted(maps.Keys(parameters))
	keys = slices.DeleteFunc(keys, func(key string) bool { return key == ForceParameter || key == RestartedParameter })
	hash := sha256.New()
	fmt.Fprintln(hash, "cleat fence owner 1")
	for _, key := range keys {
		// With the lengths, encodings are unique.
		fmt.Fprintf(hash, "%d:%s%d:%s", len(key), key, len(parameters[key]), parameters[key])
	}
	return volume.FenceOwner{Digest: hex.EncodeToString(hash.Sum(nil)), Keys: keys}
}
