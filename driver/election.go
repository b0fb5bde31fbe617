package driver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/dynamic"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/internal/kubeconfig"
	"github.com/cleatproject/cleat/internal/lease"
	"github.com/cleatproject/cleat/internal/server"
)

// releaseTimeout bounds the last request of a process that has ended its work.
const releaseTimeout = 2 * time.Second

// election lets one of several controllers serve: the holder of a Lease. The others
// wait, before they open anything, and answer their sidecars that they are not ready
// (standby); /readyz is ready, so that updates go on. A Lease shortens the time until the
// next one serves, and proves nothing: a process that was stopped while it held the Lease
// can continue for a moment. That it changes nothing then is up to the state, of which
// the next process is the owner (store.Options.Owner), or to the storage (engine ceph).
type election struct {
	name, kubeconfig string // name is NAMESPACE/NAME
	duration         time.Duration
	identity         string // of this process, set by add
}

func (e *election) isSet() bool { return e.name != "" }

func (e *election) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&e.name, "lease", "", "Lease as NAMESPACE/NAME, for several replicas of a controller: the one that holds it serves, the others wait; empty: none")
	fs.StringVar(&e.kubeconfig, "lease-kubeconfig", "", "kubeconfig file for the Lease; empty: in-cluster configuration")
	fs.DurationVar(&e.duration, "lease-duration", 15*time.Second, "how long a lost holder of --lease keeps the other replicas waiting, in whole seconds")
}

func (e *election) check(d *csi.Deployment) error {
	namespace, name, ok := strings.Cut(e.name, "/")
	switch {
	case !e.isSet() && e.kubeconfig != "":
		return errors.New("--lease-kubeconfig requires --lease")
	case !e.isSet():
		return nil
	case !ok || namespace == "" || name == "" || strings.Contains(name, "/"):
		return fmt.Errorf("--lease %q does not have the form NAMESPACE/NAME", e.name)
	case !d.MultiNode || d.Services.Node || !d.Services.Controller:
		return errors.New("--lease is for --services controller of an engine whose volumes all nodes reach: other processes have volumes or mounts of their node, which another replica cannot serve")
	}
	return lease.CheckDuration(e.duration)
}

// add adds the part that waits for the Lease, renews it, and ends the process at once
// when it is lost: another one can begin to serve a third of the duration later.
func (e *election) add(d *driver) error {
	access, err := kubeconfig.Load(e.kubeconfig, d.process.UserAgent())
	if err != nil {
		return fmt.Errorf("--lease: %w", err)
	}
	client, err := dynamic.NewForConfig(access)
	if err != nil {
		return fmt.Errorf("--lease: client of the API server %s: %w", access.Host, err)
	}
	host, err := os.Hostname() // the pod's name
	if err != nil {
		return err
	}
	namespace, name, _ := strings.Cut(e.name, "/")
	e.identity = host + "_" + rand.Text()
	l := lease.New(lease.Config{Client: client, Namespace: namespace, Name: name, Identity: e.identity, Duration: e.duration, Logger: d.Logger})
	d.Check("lease", l.Check)
	d.CheckOnly("lease")
	acquire := func(ctx context.Context) error {
		var waiting standby
		err := waiting.start(ctx, d)
		if err == nil {
			err = l.Acquire(ctx)
		}
		d.CheckOnly("")
		return errors.Join(err, waiting.stop(ctx))
	}
	d.Add(server.Part{Name: "lease", Prepare: acquire, Run: func(ctx context.Context) error {
		err := l.Keep(ctx)
		if ctx.Err() == nil {
			return server.Abandon(err)
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		if err := l.Release(ctx); err != nil {
			d.Logger.WarnContext(ctx, "lease not released, the next replica waits for its end", "lease", e.name, "err", err)
		}
		return nil
	}})
	return nil
}
