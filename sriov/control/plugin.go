package control

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/sriov/gate"
)

// Plugin is the device plugin behind a Server: gate.Control and what drives it.
// Its methods are called from many goroutines. What an *End says reaches the
// caller as it is; of other errors an ended context is named as such, and the
// rest is Internal.
type Plugin interface {
	// Enable gives the devices to a claim, whose Session the server has made. A
	// claim that is refused is an *End with its code, from here or from the first
	// Next. After an error no Close follows; the claim then holds nothing.
	Enable(ctx context.Context, c gate.Claim) (Stream, error)
	// Disable takes the devices back and waits for that; an empty session means
	// whoever holds them. Disabled.Code other than OK is an answer, not an error.
	Disable(ctx context.Context, session string) (gate.Disabled, error)
	// Heartbeat renews a lease by a call that came in at that moment, and returns
	// how long the lease is from then on. One that is refused is an *End.
	Heartbeat(ctx context.Context, session string, at time.Time) (lease time.Duration, err error)
	// Status tells how the plugin is. It does not wait. The caller does not change
	// what it gets.
	Status() gate.Status
}

// Stream is what the holder of the devices hears. Next is called by one
// goroutine at a time.
type Stream interface {
	// Next waits for a status that it has not returned yet, and returns the newest;
	// the first comes at once when the claim is accepted. An *End when the stream
	// is over, the context's error when that ends first.
	Next(ctx context.Context) (gate.Status, error)
	// Close tells the plugin that the stream has ended, from whichever side. It
	// may be called again, and while Next waits.
	Close()
}

// End is the end of a stream, or the refusal of a call, in the words of the
// contract. Code OK ends a stream after DisableDevices.
type End struct {
	Code   codes.Code
	Reason string
}

func (e *End) Error() string { return fmt.Sprintf("%s (%s)", e.Reason, e.Code) }
