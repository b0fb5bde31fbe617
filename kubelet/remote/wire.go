package remote

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	hostv1 "github.com/cleatproject/cleat/api/host/v1"
	"github.com/cleatproject/cleat/kubelet/watch"
)

// phases is by number in the API.
func phases() []watch.Phase {
	return []watch.Phase{
		hostv1.Phase_PHASE_UNSPECIFIED:   "",
		hostv1.Phase_PHASE_WAITING:       watch.Waiting,
		hostv1.Phase_PHASE_ASKING:        watch.Asking,
		hostv1.Phase_PHASE_VALIDATING:    watch.Validating,
		hostv1.Phase_PHASE_REGISTERING:   watch.Registering,
		hostv1.Phase_PHASE_NOTIFYING:     watch.Notifying,
		hostv1.Phase_PHASE_REGISTERED:    watch.Registered,
		hostv1.Phase_PHASE_FAILED:        watch.Failed,
		hostv1.Phase_PHASE_DEREGISTERING: watch.DeRegistering,
		hostv1.Phase_PHASE_GONE:          watch.Gone,
	}
}

func phaseToWire(p watch.Phase) hostv1.Phase {
	return hostv1.Phase(max(0, slices.Index(phases(), p)))
}

// phaseFromWire returns "phase N" for a later release's.
func phaseFromWire(p hostv1.Phase) watch.Phase {
	if all := phases(); int(p) >= 0 && int(p) < len(all) {
		return all[p]
	}
	return watch.Phase(fmt.Sprintf("phase %d", p))
}

func toWire(s watch.Status) *hostv1.Plugin {
	p := &hostv1.Plugin{
		Socket: pathToWire(s.Socket), Type: valid(s.Type), Name: valid(s.Name), Endpoint: pathToWire(s.Endpoint),
		Phase: phaseToWire(s.Phase), Since: timeToWire(s.Since), Found: timeToWire(s.Found),
		Attempts: uint32(max(0, s.Attempts)), NextTry: timeToWire(s.NextTry), Dead: s.Dead,
	}
	for _, v := range s.Versions {
		p.Versions = append(p.Versions, valid(v))
	}
	if s.Step != "" || s.Error != "" || s.Reason != "" {
		p.Failure = &hostv1.Failure{Step: phaseToWire(s.Step), Error: valid(s.Error), Reason: valid(s.Reason)}
	}
	return p
}

func fromWire(p *hostv1.Plugin) watch.Status {
	return watch.Status{
		Plugin: watch.Plugin{
			Type: p.GetType(), Name: p.GetName(), Endpoint: pathFromWire(p.GetEndpoint()),
			Versions: p.GetVersions(), Socket: pathFromWire(p.GetSocket()),
		},
		Phase: phaseFromWire(p.GetPhase()), Since: timeFromWire(p.GetSince()), Found: timeFromWire(p.GetFound()),
		Step: phaseFromWire(p.GetFailure().GetStep()), Error: p.GetFailure().GetError(), Reason: p.GetFailure().GetReason(),
		Attempts: int(p.GetAttempts()), NextTry: timeFromWire(p.GetNextTry()), Dead: p.GetDead(),
	}
}

func timeToWire(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func timeFromWire(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// valid: invalid UTF-8 cannot be encoded.
func valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// pathToWire encodes a path as UTF-8: invalid bytes become \xff, and a
// backslash is doubled.
func pathToWire(path string) string {
	if utf8.ValidString(path) && !strings.Contains(path, `\`) {
		return path
	}
	var b strings.Builder
	for i := 0; i < len(path); {
		r, size := utf8.DecodeRuneInString(path[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, path[i])
		case r == '\\':
			b.WriteString(`\\`)
		default:
			b.WriteString(path[i : i+size])
		}
		i += size
	}
	return b.String()
}

// pathFromWire leaves other escapes as they are.
func pathFromWire(text string) string {
	if !strings.Contains(text, `\`) {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		rest := text[i:]
		if strings.HasPrefix(rest, `\\`) {
			b.WriteByte('\\')
			i++
			continue
		}
		if strings.HasPrefix(rest, `\x`) && len(rest) >= 4 {
			if n, err := strconv.ParseUint(rest[2:4], 16, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(text[i])
	}
	return b.String()
}
