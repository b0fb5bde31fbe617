package access

import (
	"fmt"
	"math"
	"strconv"
)

// Seconds is an optional duration in seconds.
type Seconds struct {
	N     int
	Given bool
}

func Sec(n int) Seconds { return Seconds{N: n, Given: true} }

// Timeouts configure how an initiator handles a lost controller.
type Timeouts struct {
	Loss     Seconds // until the controller is removed; -1: never, 0: immediately
	Delay    Seconds // between two reconnect attempts
	FastFail Seconds // until I/O fails during reconnects; 0: not before Loss
}

// Check validates the given values by the rules of SPDK's
// bdev_nvme_attach_controller, which returns -22 for any violation.
func (t Timeouts) Check() error {
	loss, delay, fast := t.Loss, t.Delay, t.FastFail
	switch {
	case loss.Given && loss.N < -1 || delay.N < 0 || fast.N < 0:
		return fmt.Errorf("%s must be -1 or more, %s and %s must be 0 or more; they are %d, %d and %d", keyLoss, keyDelay, keyFast, loss.N, delay.N, fast.N)
	case loss.Given && loss.N == 0 && (delay.N != 0 || fast.N != 0):
		return fmt.Errorf("%s 0 removes a lost controller immediately, so %s %d and %s %d must be 0 too", keyLoss, keyDelay, delay.N, keyFast, fast.N)
	case delay.Given && delay.N == 0 && loss.Given && loss.N != 0:
		return fmt.Errorf("%s %d requires a %s above 0", keyLoss, loss.N, keyDelay)
	case delay.Given && delay.N == 0 && fast.N != 0:
		return fmt.Errorf("%s %d requires a %s above 0", keyFast, fast.N, keyDelay)
	case loss.N > 0 && delay.N > loss.N:
		return fmt.Errorf("%s %d is longer than %s %d", keyDelay, delay.N, keyLoss, loss.N)
	case loss.N > 0 && fast.N > loss.N:
		return fmt.Errorf("%s %d is longer than %s %d", keyFast, fast.N, keyLoss, loss.N)
	case fast.N > 0 && delay.N > fast.N:
		return fmt.Errorf("%s %d is longer than %s %d", keyDelay, delay.N, keyFast, fast.N)
	}
	return nil
}

// Or fills in all missing values from defaults, adjusted so that the rules of
// Check hold.
func (t Timeouts) Or(defaults Timeouts) Timeouts {
	switch {
	case t.Loss.Given:
	case t.Delay.Given && t.Delay.N == 0:
		t.Loss = Sec(0)
	case defaults.Loss.N > 0:
		t.Loss = Sec(max(defaults.Loss.N, t.Delay.N, t.FastFail.N))
	case defaults.Loss.N == 0 && (t.Delay.N > 0 || t.FastFail.N > 0):
		t.Loss = Sec(max(t.Delay.N, t.FastFail.N))
	default:
		t.Loss = Sec(defaults.Loss.N)
	}
	if t.Loss.N == 0 {
		return Timeouts{Loss: Sec(0), Delay: Sec(0), FastFail: Sec(0)}
	}
	longest := math.MaxInt32
	if t.Loss.N > 0 {
		longest = t.Loss.N
	}
	if !t.Delay.Given {
		most := longest
		if t.FastFail.N > 0 {
			most = min(most, t.FastFail.N)
		}
		t.Delay = Sec(min(max(defaults.Delay.N, 1), most))
	}
	if !t.FastFail.Given {
		t.FastFail = Sec(0)
		if defaults.FastFail.N > 0 {
			t.FastFail = Sec(min(max(defaults.FastFail.N, t.Delay.N), longest))
		}
	}
	return t
}

func (f fields) seconds(key string) (Seconds, error) {
	if f[key] == "" {
		return Seconds{}, nil
	}
	n, err := strconv.ParseInt(f[key], 10, 32)
	if err != nil {
		return Seconds{}, fmt.Errorf("%s %s is not a whole number of seconds", key, Quote(f[key]))
	}
	return Sec(int(n)), nil
}

func (f fields) timeouts() (Timeouts, error) {
	var t Timeouts
	for key, to := range map[string]*Seconds{keyLoss: &t.Loss, keyDelay: &t.Delay, keyFast: &t.FastFail} {
		var err error
		if *to, err = f.seconds(key); err != nil {
			return Timeouts{}, err
		}
	}
	return t, t.Check()
}

func (t Timeouts) encode(out map[string]string) {
	for key, s := range map[string]Seconds{keyLoss: t.Loss, keyDelay: t.Delay, keyFast: t.FastFail} {
		if s.Given {
			out[key] = strconv.Itoa(s.N)
		}
	}
}
