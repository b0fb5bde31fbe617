package driver

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/configmap"
	"github.com/cleatproject/cleat/internal/store"
)

// State is a database that survives a loss of power: of grants and fences
// (Process.UseState), and of an engine's Records. Process.OpenFile, Process.OpenState
// and OpenFile open one.
type State interface {
	// Spare returns an error if space runs short. Engines check it before they add
	// records: what is left is for revocations, fences and deletions.
	Spare(ctx context.Context) error
}

func database(s State) (store.Database, error) {
	db, ok := s.(store.Database)
	if !ok {
		return nil, errs.Errorf(errs.Internal, "the state %T was not opened by package driver", s)
	}
	return db, nil
}

// OpenFile opens a database in a file of an existing directory, outside of a Process:
// for tests of engines.
func OpenFile(ctx context.Context, path string) (s State, closeFile func() error, err error) {
	file, err := store.Open(ctx, path, fileOptions("controller"))
	if err != nil {
		return nil, nil, err
	}
	return file, file.Close, nil
}

// StateFlags are the flags that say where a controller's state is: in a file of its
// state directory, or in a ConfigMap, so that the controller can run on any node.
type StateFlags struct {
	Prefix                string // of the flags' names, such as "acme-"
	configMap, kubeconfig string
}

// AddFlags declares --PREFIXstate and --PREFIXkubeconfig.
func (f *StateFlags) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&f.kubeconfig, f.Prefix+"kubeconfig", "", "kubeconfig file for the ConfigMap of --"+f.Prefix+"state; empty: in-cluster configuration")
	fs.StringVar(&f.configMap, f.Prefix+"state", "", "ConfigMap with the controller's state, as configmap:NAMESPACE/NAME, so that it can run on any node; empty: controller.db in --state-dir")
}

// Check refuses values that are not valid.
func (f *StateFlags) Check() error {
	_, _, err := f.parse()
	return err
}

// parse returns no name if the state is in a file.
func (f *StateFlags) parse() (namespace, name string, err error) {
	if f.configMap == "" {
		return "", "", nil
	}
	rest, isMap := strings.CutPrefix(f.configMap, "configmap:")
	namespace, name, ok := strings.Cut(rest, "/")
	if !isMap || !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return "", "", fmt.Errorf("--%sstate %q does not have the form configmap:NAMESPACE/NAME; leave it empty for a file in --state-dir", f.Prefix, f.configMap)
	}
	return namespace, name, nil
}

// OpenState opens the database of the flags.
func (p *Process) OpenState(ctx context.Context, f *StateFlags) (State, error) {
	namespace, name, err := f.parse()
	switch {
	case err != nil:
		return nil, err
	case name == "" && f.kubeconfig != "":
		return nil, fmt.Errorf("--%skubeconfig %q is for a ConfigMap, and --%[1]sstate names none; set configmap:NAMESPACE/NAME", f.Prefix, f.kubeconfig)
	case name == "":
		return p.OpenFile(ctx, "controller")
	}
	if err := os.MkdirAll(p.StateDir(), 0o700); err != nil { // for the status socket
		return nil, fmt.Errorf("--state-dir: %w", err)
	}
	object, err := configmap.New(configmap.Config{Namespace: namespace, Name: name, Kubeconfig: f.kubeconfig, UserAgent: p.UserAgent()})
	if err != nil {
		return nil, fmt.Errorf("--%sstate: %w", f.Prefix, err)
	}
	options := fileOptions("controller")
	options.Owner = p.driver.election.identity
	shared, err := store.OpenShared(ctx, object.String(), object, options)
	if err != nil {
		return nil, err
	}
	p.Background("watch of the state", func(ctx context.Context) error {
		shared.Watch(ctx, func(err error) {
			p.Logger().Warn("the records are not watched, each comparison reads them", "err", err)
		})
		return nil
	})
	return shared, nil
}
