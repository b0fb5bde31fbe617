package upstream

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/kubelet/watch/watchtest"
)

// equals maps each test of the kubelet's plugin manager to the equivalent cases
// of the suite.
var equals = map[string][]string{
	"Test_ASW_AddPlugin_Positive_NewPlugin":                             {"outcomes/success"},
	"Test_ASW_RemovePlugin_Positive":                                    {"changes/socket removed"},
	"Test_ASW_PluginExistsWithCorrectUUID_Negative_WrongUUID":           {"changes/another socket renamed over it"},
	"Test_DSW_AddOrUpdatePlugin_Positive_NewPlugin":                     {"discovery/socket, while running"},
	"Test_DSW_AddOrUpdatePlugin_Positive_ExistingPlugin":                {"changes/another socket renamed over it"},
	"Test_DSW_RemovePlugin_Positive":                                    {"changes/socket removed"},
	"TestOperationExecutor_RegisterPlugin_ConcurrentRegisterPlugin":     {"instances/ten names whose Register hangs, and an eleventh"},
	"TestOperationExecutor_RegisterPlugin_SerialRegisterPlugin":         {"instances/slow Register is not called twice"},
	"TestOperationExecutor_UnregisterPlugin_ConcurrentUnregisterPlugin": {"instances/ten names whose DeRegister hangs, and an eleventh"},
	"TestOperationExecutor_UnregisterPlugin_SerialUnregisterPlugin":     {"instances/slow DeRegister is not called twice"},
	"Test_Run_Positive_DoNothing":                                       {"changes/nothing in the directory"},
	"Test_Run_Positive_Register":                                        {"discovery/socket, while running"},
	"Test_Run_Positive_RegisterThenUnregister":                          {"changes/socket removed"},
	"Test_Run_Positive_ReRegister":                                      {"changes/socket removed and created again at once"},
	"TestPluginManager": {"life/plugin that comes and goes ten times, in the directory",
		"life/plugin that comes and goes ten times, one directory down", "life/plugin that comes and goes ten times, two directories down"},
	"TestGetStat":                          {"discovery/regular file, while running"},
	"TestGetSocketPath":                    {"discovery/socket three directories deep, while running"},
	"TestPluginRegistration":               {"life/plugin that comes and goes ten times, in the directory"},
	"TestPluginRegistrationSameName":       {"instances/ten sockets of one name"},
	"TestPluginReRegistration":             {"life/socket created again ten times, each time with another name"},
	"TestPluginRegistrationAtKubeletStart": {"life/ten plugins present at start"},
}

// without lists the tests without an equivalent, with the reason.
var without = map[string]string{
	"Test_ASW_AddPlugin_Negative_EmptySocketPath":           "a socket without a path comes only from inside the kubelet",
	"Test_DSW_AddOrUpdatePlugin_Negative_PluginMissingInfo": "a socket without a path comes only from inside the kubelet",
	"TestMetricCollection":                                  "the figures of a host are its own; ours are tested by TestMetrics of kubelet/watch",
}

// Every test of the kubelet's plugin manager is listed, also new ones.
func TestEveryKubeletTestHasAnEqual(t *testing.T) {
	known := map[string]bool{}
	for _, c := range watchtest.Cases() {
		if known[c.ID()] {
			t.Errorf("two cases are called %s", c.ID())
		}
		known[c.ID()] = true
	}
	theirs := testsBelow(t, "pkg/kubelet/pluginmanager")
	if len(theirs) != 24 {
		t.Errorf("the kubelet has %d tests of its plugin manager, not 24", len(theirs))
	}
	for _, name := range theirs {
		if len(equals[name]) == 0 && without[name] == "" {
			t.Errorf("%s of the kubelet has no equal", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(equals)) {
		if !slices.Contains(theirs, name) {
			t.Errorf("the kubelet has no test %s", name)
		}
		for _, id := range equals[name] {
			if !known[id] {
				t.Errorf("%s: there is no case %s", name, id)
			}
		}
	}
}

// testsBelow returns Kubernetes' tests for Linux below a directory.
func testsBelow(t *testing.T, dir string) (names []string) {
	t.Helper()
	root, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(filepath.Join(strings.TrimSpace(string(root)), dir), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "_windows_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range file.Decls {
			if f, is := d.(*ast.FuncDecl); is && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") && f.Name.Name != "TestMain" {
				names = append(names, f.Name.Name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
