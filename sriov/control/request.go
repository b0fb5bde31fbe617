package control

import (
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	controlv1 "github.com/cleatproject/cleat/api/sriovdp/control/v1"
	"github.com/cleatproject/cleat/sriov/gate"
)

// Limits of a request, whose texts appear in logs and in the status.
const (
	maxNode    = 253 // bytes, as in Kubernetes
	maxUID     = 128
	maxHash    = 256
	maxSession = 64

	// MinLease is the shortest lease. With a shorter one, load could cost a
	// live holder its devices.
	MinLease = time.Second
	MaxLease = time.Hour
	MaxHold  = time.Hour

	// MaxClosed is the most closed functions of a claim, which has one for each
	// PF or VF with a problem.
	MaxClosed = 4096
	maxReason = 512
)

var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)

// claimOf validates a request; errors are *gate.End with InvalidArgument. Generation
// 0: the client does not know it.
func claimOf(r *controlv1.EnableDevicesRequest) (gate.Claim, error) {
	c := gate.Claim{UID: r.GetNodeStateUid(), Generation: r.GetNodeStateGeneration(), Hash: r.GetConfigHash(), Node: r.GetNodeName()}
	if c.Generation < 0 {
		return gate.Claim{}, invalid("node_state_generation %d is negative; set it to metadata.generation of the node state, or to 0 if unknown", c.Generation)
	}
	for _, of := range []struct {
		field, value string
		most         int
	}{{"node_name", c.Node, maxNode}, {"node_state_uid", c.UID, maxUID}, {"config_hash", c.Hash, maxHash}} {
		if err := checkToken(of.field, of.value, of.most); err != nil {
			return gate.Claim{}, err
		}
	}
	var err error
	if c.Lease, err = durationField("lease_duration", r.GetLeaseDuration(), MinLease, MaxLease); err != nil {
		return gate.Claim{}, err
	}
	if c.Hold, err = durationField("hold_time", r.GetHoldTime(), 0, MaxHold); err != nil {
		return gate.Claim{}, err
	}
	if c.Closed, err = closedFunctions(r.GetClosedFunctions()); err != nil {
		return gate.Claim{}, err
	}
	return c, nil
}

func closedFunctions(list []*controlv1.ClosedFunction) (gate.Closed, error) {
	if len(list) > MaxClosed {
		return nil, invalid("closed_functions has %d functions, the maximum is %d; close their physical functions", len(list), MaxClosed)
	}
	for _, f := range list {
		switch address, reason := f.GetAddress(), f.GetReason(); {
		case !pciAddress.MatchString(address):
			return nil, invalid("closed_functions: %.40q is not a PCI address, want one such as \"0000:3b:00.0\"", address)
		case len(reason) > maxReason:
			return nil, invalid("closed_functions: the reason of %s is %d bytes long, the maximum is %d", address, len(reason), maxReason)
		case strings.ContainsFunc(reason, unicode.IsControl):
			return nil, invalid("closed_functions: the reason of %s has control characters", address)
		}
	}
	return closedOf(list), nil
}

// checkToken accepts printable ASCII without spaces, which is safe in logs.
func checkToken(field, value string, most int) error {
	if len(value) > most {
		return invalid("%s is %d bytes long, the maximum is %d: %.40q...", field, len(value), most, value)
	}
	if strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return invalid("%s %q has invalid characters; use printable ASCII without spaces", field, value)
	}
	return nil
}

// Unset and 0 both mean no duration.
func durationField(field string, d *durationpb.Duration, least, most time.Duration) (time.Duration, error) {
	if d == nil {
		return 0, nil
	}
	if err := d.CheckValid(); err != nil {
		return 0, invalid("%s is not a valid duration: %v", field, err)
	}
	value := d.AsDuration()
	if value != 0 && (value < least || value > most) {
		return 0, invalid("%s is %s; it must be between %s and %s, or unset", field, value, least, most)
	}
	return value, nil
}

// checkSession accepts sessions of other implementations.
func checkSession(session string, required bool) error {
	if session == "" && required {
		return invalid("session is empty; use the session from the status messages of the EnableDevices stream")
	}
	return checkToken("session", session, maxSession)
}

func invalid(format string, args ...any) error {
	return &gate.End{Code: codes.InvalidArgument, Reason: fmt.Sprintf(format, args...)}
}
