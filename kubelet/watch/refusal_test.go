package watch

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/test/testkit"
)

// A registrar that exits after each refusal, and is restarted, stays explained: by
// the file that it leaves, by its next socket, and without a socket.
func TestRefusalOutlivesItsPlugin(t *testing.T) {
	r := startRig(t, func(o *Options) { o.BackOff = BackOff{First: time.Millisecond, Most: time.Millisecond} })
	refuse := errors.New("driver is already registered")
	r.recorder.register = func(context.Context, Plugin) error { return refuse }
	notified := make(chan struct{}, 1)
	dies := func(p *plugin) {
		p.notify = func(context.Context, *registration.RegistrationStatus) error {
			select {
			case notified <- struct{}{}:
			default:
			}
			return nil
		}
	}
	explained := func(word, at string) {
		t.Helper()
		if _, why := r.Why(word); !strings.Contains(why, refuse.Error()) {
			t.Errorf("%s: %s", at, why)
		}
	}
	p := newPlugin(t, r.path("n-reg.sock"), "T", "n", dies)
	<-notified
	p.kill()
	s := r.until("n-reg.sock", func(s Status) bool { return s.Phase == Failed && s.Step == Asking })
	if !strings.HasPrefix(s.Reason, "T n was refused at ") || !strings.Contains(s.Reason, "no process listens") {
		t.Errorf("reason %q", s.Reason)
	}
	explained("n", "with the file of the ended plugin")

	testkit.Must(t, os.Remove(r.path("n-reg.sock")))
	r.phase("n-reg.sock", Gone)
	explained("n", "without a socket")
	explained(r.path("n-reg.sock"), "without a socket, by path")

	answer := make(chan struct{})
	newPlugin(t, r.path("n-reg.sock"), "T", "n", func(p *plugin) {
		p.info = func(context.Context) (*registration.PluginInfo, error) {
			<-answer
			return &registration.PluginInfo{Type: "T", Name: "n"}, nil
		}
	})
	r.phase("n-reg.sock", Asking)
	explained("n", "with the next socket, before its answer")
	r.recorder.mu.Lock()
	r.recorder.register = nil
	r.recorder.mu.Unlock()
	close(answer)
	if s := r.phase("n-reg.sock", Registered); s.Error != "" || len(r.refusalsOf("n")) != 0 {
		t.Errorf("registered, with %+v", s)
	}
}

func TestRefusalsAreBounded(t *testing.T) {
	h := testkit.Value(New(Options{Dir: "/run/x"}))(t)
	for i := range 2 * maxRefusals {
		h.refused(Plugin{Name: "n", Socket: "/run/x/" + strings.Repeat("s", i)}, failure{})
	}
	if n := len(h.refusals); n != maxRefusals {
		t.Errorf("%d are kept", n)
	}
}
