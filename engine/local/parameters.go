package local

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/poolfile"
)

// Keys of parameters, which are also those of Volume.Attributes.
const (
	keyProvisioning = "provisioning"
	keyTrimInterval = "trimInterval"
	keyReadAhead    = "readAheadKiB"
	keyConsistency  = "consistency" // of groups
)

// Values of provisioning.
const (
	thin  = poolfile.Thin
	thick = poolfile.Thick
)

// Bounds of what can be set.
const (
	minTrimInterval = time.Minute
	maxReadAhead    = 1 << 20 // KiB
)

// settings are what a volume's parameters say. Values are in one canonical
// spelling; empty is "not set".
type settings struct {
	Provisioning string `json:"provisioning"`
	TrimInterval string `json:"trimInterval,omitempty"` // Go duration, "0" is off
	ReadAhead    string `json:"readAheadKiB,omitempty"`
}

func (s settings) thick() bool { return s.Provisioning == thick }

// parameters spells the settings as CreateRequest.Parameters would.
func (s settings) parameters() map[string]string {
	all := map[string]string{keyProvisioning: s.Provisioning, keyTrimInterval: s.TrimInterval, keyReadAhead: s.ReadAhead}
	maps.DeleteFunc(all, func(_, value string) bool { return value == "" })
	return all
}

func parameterKeys() []string { return []string{keyProvisioning, keyReadAhead, keyTrimInterval} }

// parseSettings lays parameters over settings. Nothing is applied when one of
// them is wrong: the error is Invalid and says what would be right.
func parseSettings(base settings, parameters map[string]string) (settings, error) {
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		if err := base.set(key, parameters[key]); err != nil {
			return settings{}, err
		}
	}
	return base, nil
}

func (s *settings) set(key, value string) (err error) {
	switch key {
	case keyProvisioning:
		s.Provisioning, err = parseProvisioning(value)
	case keyTrimInterval:
		s.TrimInterval, err = parseTrimInterval(value)
	case keyReadAhead:
		s.ReadAhead, err = parseReadAhead(value)
	default:
		return unknownWord("parameter", key, parameterKeys())
	}
	return err
}

func parseProvisioning(value string) (string, error) {
	if value != thin && value != thick {
		return "", unknownWord("value of "+keyProvisioning, value, []string{thin, thick})
	}
	return value, nil
}

func parseTrimInterval(value string) (string, error) {
	d, err := time.ParseDuration(value)
	if err != nil {
		return "", errs.Errorf(errs.Invalid, "%s %q is not a duration such as 24h or 30m, or 0 for off", keyTrimInterval, value)
	}
	if d == 0 {
		return "0", nil
	}
	if d < minTrimInterval {
		return "", errs.Errorf(errs.Invalid, "%s %q is too short: at least %s, or 0 for off", keyTrimInterval, value, minTrimInterval)
	}
	return d.String(), nil
}

func parseReadAhead(value string) (string, error) {
	kib, err := strconv.ParseUint(value, 10, 31)
	if err != nil || kib > maxReadAhead {
		return "", errs.Errorf(errs.Invalid, "%s %q is not a number of KiB from 0 to %d", keyReadAhead, value, maxReadAhead)
	}
	return strconv.FormatUint(kib, 10), nil
}

// unknownWord names what is known and what was probably meant.
func unknownWord(what, word string, known []string) error {
	if near := errs.Nearest(word, known); near != "" {
		return errs.Errorf(errs.Invalid, "%s %q is not known here; did you mean %q?", what, word, near)
	}
	return errs.Errorf(errs.Invalid, "%s %q is not known here; known are %s", what, word, strings.Join(known, ", "))
}

// parseConsistency reads the parameters of a group; memberwise accepts that
// members which nothing can freeze are cut as a crash would leave them.
func parseConsistency(parameters map[string]string) (memberwise bool, err error) {
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		value := parameters[key]
		switch {
		case key != keyConsistency:
			return false, unknownWord("parameter of a group", key, []string{keyConsistency})
		case value == "member":
			memberwise = true
		case value != "group":
			return false, unknownWord("value of "+keyConsistency, value, []string{"group", "member"})
		}
	}
	return memberwise, nil
}

// noParameters refuses parameters where none are known.
func noParameters(parameters map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		return errs.Errorf(errs.Invalid, "parameter %q is not known: a snapshot here takes none", key)
	}
	return nil
}
