package programs

import (
	"path"
	"slices"
	"strings"
)

// module is a go.mod of this tree and the programs built with it, in one run of
// the go command each for programs and tests.
type module struct {
	name    string
	modfile string // relative to the source tree's root
	sources []source
}

// source is a Go module that commands are built from.
type source struct {
	path     string
	stamp    []string // variables set by the linker, with {version}, {major} and {minor}
	programs []program
	crds     []crds
}

type program struct {
	name string
	pkg  string // relative to the source's path
	test bool   // test binary of the package, built only on request
}

// crds are CustomResourceDefinitions to copy.
type crds struct {
	name string
	dir  string // relative to the source's root
	pkg  string // any package of the source, relative to its path
}

// older lists the minor versions of Kubernetes that can be built instead of the
// newest one.
func older() []string { return []string{"1.36"} }

// modules lists what can be built, in the order of the build: the components of
// a node first. Kubernetes is the newest one if the version is empty, else one
// of older.
func modules(kubernetes string) []module {
	const own = "test/kubernetes/programs/"
	dir := "kubernetes"
	if kubernetes != "" {
		dir += "-" + kubernetes
	}
	return []module{
		{name: "kubernetes", modfile: own + dir + "/go.mod", sources: []source{{
			path: "k8s.io/kubernetes",
			stamp: []string{
				"k8s.io/component-base/version.gitVersion={version}", "k8s.io/component-base/version.gitMajor={major}", "k8s.io/component-base/version.gitMinor={minor}",
				"k8s.io/client-go/pkg/version.gitVersion={version}", "k8s.io/client-go/pkg/version.gitMajor={major}", "k8s.io/client-go/pkg/version.gitMinor={minor}",
			},
			programs: []program{
				{name: "kubelet", pkg: "cmd/kubelet"},
				{name: "kube-apiserver", pkg: "cmd/kube-apiserver"},
				{name: "kube-controller-manager", pkg: "cmd/kube-controller-manager"},
				{name: "kube-scheduler", pkg: "cmd/kube-scheduler"},
				{name: "kube-proxy", pkg: "cmd/kube-proxy"},
				{name: "kubectl", pkg: "cmd/kubectl"},
				{name: "agnhost", pkg: "test/images/agnhost"},
				{name: "sample-device-plugin", pkg: "test/images/sample-device-plugin"},
				{name: "e2e.test", pkg: "test/e2e", test: true},
			},
		}}},
		{name: "sidecars", modfile: own + "sidecars/go.mod", sources: []source{
			{path: "github.com/kubernetes-csi/external-provisioner/v6", stamp: []string{"main.version={version}"},
				programs: []program{{name: "csi-provisioner", pkg: "cmd/csi-provisioner"}}},
			{path: "github.com/kubernetes-csi/external-attacher/v4", stamp: []string{"main.version={version}"},
				programs: []program{{name: "csi-attacher", pkg: "cmd/csi-attacher"}}},
			{path: "github.com/kubernetes-csi/external-resizer/v2", stamp: []string{"main.version={version}"},
				programs: []program{{name: "csi-resizer", pkg: "cmd/csi-resizer"}}},
			{path: "github.com/kubernetes-csi/external-snapshotter/v8", stamp: []string{"main.version={version}"},
				programs: []program{{name: "csi-snapshotter", pkg: "cmd/csi-snapshotter"}, {name: "snapshot-controller", pkg: "cmd/snapshot-controller"}}},
			{path: "github.com/kubernetes-csi/external-snapshotter/client/v8", crds: []crds{{name: "snapshot", dir: "config/crd", pkg: "apis/volumesnapshot/v1"}}},
		}},
		{name: "csi-addons", modfile: own + "csiaddons/go.mod", sources: []source{{
			path:     "github.com/csi-addons/kubernetes-csi-addons",
			stamp:    []string{"github.com/csi-addons/kubernetes-csi-addons/internal/version.Version={version}"},
			programs: []program{{name: "csi-addons-sidecar", pkg: "sidecar"}, {name: "csi-addons-manager", pkg: "cmd/manager"}},
			crds:     []crds{{name: "csi-addons", dir: "config/crd/bases", pkg: "sidecar"}},
		}}},
		{name: "helm", modfile: "tools/helm.mod", sources: []source{{
			path:     "helm.sh/helm/v4",
			stamp:    []string{"helm.sh/helm/v4/internal/version.version={version}"},
			programs: []program{{name: "helm", pkg: "cmd/helm"}},
		}}},
	}
}

// linkerFlags returns the -ldflags for the commands of a source. Their pattern
// does not match other sources.
func (s source) linkerFlags(version string) string {
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	fill := strings.NewReplacer("{version}", version, "{major}", major, "{minor}", minor)
	flags := []string{"-s", "-w"}
	for _, variable := range s.stamp {
		flags = append(flags, "-X", fill.Replace(variable))
	}
	return "-ldflags=" + s.path + "/...=" + strings.Join(flags, " ")
}

// output returns the go command's name for the program.
func (p program) output() string {
	if p.test {
		return p.name
	}
	return path.Base(p.pkg)
}

// paths returns the Go modules of m's sources.
func (m module) paths() []string {
	var all []string
	for _, s := range m.sources {
		all = append(all, s.path)
	}
	return all
}

// all yields every program with its source.
func (m module) all(yield func(source, program) bool) {
	for _, s := range m.sources {
		for _, p := range s.programs {
			if !yield(s, p) {
				return
			}
		}
	}
}

func names(all []module) []string {
	var found []string
	for _, m := range all {
		for _, p := range m.all {
			found = append(found, p.name)
		}
	}
	return found
}

func crdNames(all []module) []string {
	var found []string
	for _, m := range all {
		for _, s := range m.sources {
			for _, c := range s.crds {
				found = append(found, c.name)
			}
		}
	}
	slices.Sort(found)
	return found
}
