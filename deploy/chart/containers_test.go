package chart

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/cleatproject/cleat/test/testkit"
)

// The cleat images.
const (
	ours     = "cleat.local/cleat:0.1.0"
	oursCeph = "cleat.local/cleat-ceph:0.1.0"
)

// privilegedContainers lists the containers whose privileges the template explains.
var privilegedContainers = []string{"csi-node/driver", "csi-controller/driver", "dpu/plugin", "sriov-plugin/plugin", "sriov-daemon/daemon"}

func inContainers(t *testing.T, check func(t *testing.T, where string, w workload, c corev1.Container)) {
	t.Helper()
	inVariety(t, func(t *testing.T, all []object) {
		for _, w := range workloads(all) {
			for _, c := range w.containers() {
				check(t, w.labels["app.kubernetes.io/component"]+"/"+c.Name, w, c)
			}
		}
	})
}

func TestSecurity(t *testing.T) {
	inContainers(t, func(t *testing.T, where string, w workload, c corev1.Container) {
		s := c.SecurityContext
		if s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
			t.Errorf("%s: the root file system is writable", where)
			return
		}
		if s.RunAsUser == nil || *s.RunAsUser != 0 {
			t.Errorf("%s does not run as root, but opens root's sockets", where)
		}
		if s.Privileged != nil && *s.Privileged {
			if !slices.Contains(privilegedContainers, where) {
				t.Errorf("%s is privileged", where)
			}
			return
		}
		if s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation {
			t.Errorf("%s allows privilege escalation", where)
		}
		if s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s has no seccomp profile", where)
		}
		if s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("%s keeps capabilities", where)
			return
		}
		want := map[string][]corev1.Capability{
			"fence/fence": {"NET_ADMIN", "SYS_PTRACE", "DAC_READ_SEARCH"},
			"dpu/plugin":  {"DAC_OVERRIDE"},
		}[where]
		if !slices.Equal(s.Capabilities.Add, want) {
			t.Errorf("%s has capabilities %v, want %v", where, s.Capabilities.Add, want)
		}
		for _, m := range c.VolumeMounts {
			if bidirectional(m) {
				t.Errorf("%s has bidirectional mount propagation without being privileged", where)
			}
		}
	})
}

func TestResourcesAndProbes(t *testing.T) {
	inContainers(t, func(t *testing.T, where string, w workload, c corev1.Container) {
		if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().IsZero() {
			t.Errorf("%s has no requests or no memory limit", where)
		}
		if !c.Resources.Limits.Cpu().IsZero() {
			t.Errorf("%s has a CPU limit: throttling delays the kubelet's calls beyond their deadlines", where)
		}
		if c.TerminationMessagePolicy != corev1.TerminationMessageFallbackToLogsOnError {
			t.Errorf("%s: the termination message is not taken from the log", where)
		}
		if c.Image != ours && c.Image != oursCeph {
			return
		}
		if c.StartupProbe == nil || c.LivenessProbe == nil || c.ReadinessProbe == nil {
			t.Errorf("%s lacks a probe", where)
			return
		}
		if bound := c.StartupProbe.PeriodSeconds * c.StartupProbe.FailureThreshold; bound < 600 {
			t.Errorf("%s has only %d s to start", where, bound)
		}
		for _, p := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
			port := p.HTTPGet.Port.String()
			if !slices.ContainsFunc(c.Ports, func(x corev1.ContainerPort) bool { return x.Name == port }) {
				t.Errorf("%s is probed at %s, which is not one of its ports", where, port)
			}
			listens := address(c)
			if local := strings.HasPrefix(listens, "127.0.0.1:"); local != (p.HTTPGet.Host == "127.0.0.1") {
				t.Errorf("%s listens on %s, but is probed at %q", where, listens, p.HTTPGet.Host)
			}
		}
	})
}

// address returns the address of metrics and probes of a cleat container.
func address(c corev1.Container) string {
	for _, a := range c.Args {
		if v, ok := strings.CutPrefix(a, "--metrics-address="); ok {
			return v
		}
	}
	return ""
}

// Containers of a pod, or of pods in the host's network, have different ports.
func TestPortsAreUnique(t *testing.T) {
	inVariety(t, func(t *testing.T, all []object) {
		host := map[int32]string{}
		for _, w := range workloads(all) {
			used := map[int32]string{}
			if w.template.Spec.HostNetwork {
				used = host
			}
			for _, c := range w.containers() {
				for _, p := range c.Ports {
					if other, taken := used[p.ContainerPort]; taken {
						t.Errorf("%s and %s/%s both use port %d", other, w.name, c.Name, p.ContainerPort)
					}
					used[p.ContainerPort] = w.name + "/" + c.Name
				}
			}
		}
	})
}

// A node never has two pods of one kind, and pods have time for a graceful end.
func TestUpdateStrategies(t *testing.T) {
	const drain = 25 // seconds, StopBound of internal/server
	inVariety(t, func(t *testing.T, all []object) {
		for _, d := range of[appsv1.DaemonSet](all) {
			u := d.Spec.UpdateStrategy.RollingUpdate
			if d.Spec.UpdateStrategy.Type != appsv1.RollingUpdateDaemonSetStrategyType || u.MaxSurge.IntValue() != 0 || u.MaxUnavailable.IntValue() != 1 {
				t.Errorf("%s: %+v", d.Name, d.Spec.UpdateStrategy)
			}
		}
		for _, d := range of[appsv1.Deployment](all) {
			if alone := strings.HasSuffix(d.Name, "csi-controller") && !slices.ContainsFunc(d.Spec.Template.Spec.InitContainers, hasLease); alone && (d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType || *d.Spec.Replicas != 1) {
				t.Errorf("%s: %d replicas, %+v: one process at a time changes volumes", d.Name, *d.Spec.Replicas, d.Spec.Strategy)
			}
		}
		for _, w := range workloads(all) {
			if *w.template.Spec.TerminationGracePeriodSeconds < drain+10 {
				t.Errorf("%s has a grace period of only %d s", w.name, *w.template.Spec.TerminationGracePeriodSeconds)
			}
			if w.template.Spec.PriorityClassName != "system-node-critical" {
				t.Errorf("%s has priority class %q", w.name, w.template.Spec.PriorityClassName)
			}
			for _, c := range w.template.Spec.InitContainers {
				if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
					t.Errorf("%s: the init container %s does not end, so the pod would not start", w.name, c.Name)
				}
			}
			if len(w.template.Spec.Containers) == 0 {
				t.Errorf("%s has no container", w.name)
			}
		}
	})
}

// cleat accepts the arguments of each container: with an invalid log format,
// which is checked last, that is the only error.
func TestCleatAcceptsItsArguments(t *testing.T) {
	p := testkit.Value(peers())(t)
	files := testkit.NewAuthority(t, "fencing").Files(t, nil, "localhost")
	secret := strings.NewReplacer("/etc/cleat/fence-tls/tls.crt", files.Cert, "/etc/cleat/fence-tls/tls.key", files.Key, "/etc/cleat/fence-tls/ca.crt", files.CA)
	fields := map[string]string{
		"spec.nodeName": "node-1", "metadata.namespace": "cleat-system", "metadata.name": "cleat-x7f2q", "status.hostIPs": "192.0.2.1,2001:db8::1",
		"metadata.labels['topology.kubernetes.io/zone']": "a", "metadata.labels['topology.kubernetes.io/region']": "r",
	}
	inContainers(t, func(t *testing.T, where string, w workload, c corev1.Container) {
		if c.Image != ours && c.Image != oursCeph {
			return
		}
		env := []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
		known := map[string]string{}
		for _, e := range c.Env {
			value := expand(e.Value, known)
			if e.ValueFrom != nil {
				value = fields[e.ValueFrom.FieldRef.FieldPath]
			}
			known[e.Name] = value
			env = append(env, e.Name+"="+value)
		}
		var args []string
		for _, a := range append(slices.Clone(c.Args), "--log-format=nonsense") {
			args = append(args, secret.Replace(expand(a, known)))
		}
		cmd := exec.CommandContext(t.Context(), p.cleat, args...)
		cmd.Env = env
		out, err := cmd.CombinedOutput()
		want := `unknown log format "nonsense"`
		if c.Image == oursCeph { // the program here has all of its flags, but no Ceph client
			want = "built without a Ceph client"
		}
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: cleat %q: %v\n%s", where, args, err, out)
		}
		if strings.Contains(strings.Join(args, " "), "$(") {
			t.Errorf("%s: %q refers to an undefined variable", where, args)
		}
	})
}

// A misspelt environment variable would be ignored silently.
func TestCleatKnowsItsEnvironment(t *testing.T) {
	p := testkit.Value(peers())(t)
	help := map[string]string{} // help text by command
	inContainers(t, func(t *testing.T, where string, w workload, c corev1.Container) {
		if c.Image != ours && c.Image != oursCeph {
			return
		}
		words := c.Args[:slices.IndexFunc(c.Args, func(a string) bool { return strings.HasPrefix(a, "-") })]
		name := strings.Join(words, " ")
		if help[name] == "" {
			text, err := command(t, p.cleat, append(slices.Clone(words), "--help")...)
			if err != nil {
				t.Fatalf("cleat %s --help: %v\n%s", name, err, text)
			}
			help[name] = text
		}
		for _, e := range c.Env {
			ofCleat := strings.HasPrefix(e.Name, "CLEAT_") || e.Name == "PLUGIN_NAME" || e.Name == "PROVIDER_NAME"
			if ofCleat && !regexp.MustCompile(`\b`+e.Name+`\b`).MatchString(help[name]) {
				t.Errorf("%s: cleat %s does not know %s", where, name, e.Name)
			}
		}
	})
}

// expand replaces $(NAME) like the kubelet.
func expand(s string, known map[string]string) string {
	for name, value := range known {
		s = strings.ReplaceAll(s, "$("+name+")", value)
	}
	return s
}

// TestNodeDriverPod checks the fields and paths that the driver needs on a node.
func TestNodeDriverPod(t *testing.T) {
	all := render(t, release{values: "csi: {driverName: x.example.com}", apis: apis})
	d := of[appsv1.DaemonSet](all)[0]
	spec := d.Spec.Template.Spec
	c := spec.InitContainers[0]
	if spec.HostNetwork || !spec.HostPID || spec.HostIPC {
		t.Errorf("the pod uses the host's network %t, PIDs %t, IPC %t; want the PIDs alone", spec.HostNetwork, spec.HostPID, spec.HostIPC)
	}
	for _, want := range []string{"--per-node", "--node-id=$(NODE_NAME)", "--driver-name=x.example.com", "--registration-dir=/var/lib/kubelet/plugins_registry",
		"--pool=/var/lib/cleat/x.example.com/storage/pool", "--pool-image=10GiB"} {
		if !slices.Contains(c.Args, want) {
			t.Errorf("%q is not in %q", want, c.Args)
		}
	}
	for path, propagation := range map[string]corev1.MountPropagationMode{
		"/var/lib/kubelet/pods":                corev1.MountPropagationBidirectional,
		"/var/lib/kubelet/plugins":             corev1.MountPropagationBidirectional,
		"/var/lib/cleat/x.example.com/storage": corev1.MountPropagationBidirectional,
		"/var/lib/cleat/x.example.com/state":   "",
		"/var/lib/kubelet/plugins_registry":    "",
		"/dev":                                 "",
		"/sys":                                 "",
	} {
		i := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == path })
		if i < 0 {
			t.Errorf("%s is not mounted", path)
			continue
		}
		m := c.VolumeMounts[i]
		var got corev1.MountPropagationMode
		if m.MountPropagation != nil {
			got = *m.MountPropagation
		}
		if got != propagation {
			t.Errorf("%s has propagation %q, want %q", path, got, propagation)
		}
		v := spec.Volumes[slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })]
		if v.HostPath == nil || v.HostPath.Path != path {
			t.Errorf("%s is not a host path: %+v", path, v)
		}
	}
	if strings.HasPrefix(c.TerminationMessagePath, "/dev") {
		t.Error("the termination message is written to the host's /dev")
	}
	for _, s := range spec.Containers {
		if !slices.Contains(s.Args, "--csi-address=/csi/csi.sock") {
			t.Errorf("%s: %q", s.Name, s.Args)
		}
	}
}

// By default csi-provisioner writes one CSIStorageCapacity per second, for each
// class after each volume: pods waited for capacity that was available.
func TestCapacityRate(t *testing.T) {
	count := 0
	inContainers(t, func(t *testing.T, where string, _ workload, c corev1.Container) {
		if c.Name != "csi-provisioner" {
			return
		}
		count++
		for _, want := range []string{"--kube-api-capacity-qps=10", "--kube-api-capacity-burst=20"} {
			if !slices.Contains(c.Args, want) {
				t.Errorf("%s has no %s: %q", where, want, c.Args)
			}
		}
	})
	if count == 0 {
		t.Error("no release has a csi-provisioner")
	}
}
