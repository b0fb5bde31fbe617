package expose

// Op is one thing to do; its text says so in errors and logs.
type Op string

// Of block devices.
const (
	CreateSubsystem   Op = "create the subsystem"
	CreateNamespace   Op = "create the namespace"
	CreateFunction    Op = "create the function"
	CreateController  Op = "create the controller"
	AttachNamespace   Op = "attach the namespace"
	ResumeController  Op = "resume the controller"
	PlugController    Op = "plug the controller in"
	UnplugController  Op = "unplug the controller"
	DetachNamespace   Op = "detach the namespace"
	DestroyController Op = "destroy the controller"
	DestroyNamespace  Op = "destroy the namespace"
	DestroyFunction   Op = "destroy the function"
	DestroySubsystem  Op = "destroy the subsystem"
)

// Of file systems.
const (
	CreateTransport   Op = "create the transport"
	CreateManager     Op = "create the manager"
	StartTransport    Op = "start the transport"
	CreateFSFunction  Op = "create the virtio-fs function"
	CreateDevice      Op = "create the virtio-fs device"
	PlaceDevice       Op = "put the virtio-fs device on its function"
	StartDevice       Op = "start the virtio-fs device"
	PlugDevice        Op = "plug the virtio-fs device in"
	UnplugDevice      Op = "unplug the virtio-fs device"
	SettleDevice      Op = "wait for the host to let go"
	StopDevice        Op = "stop the virtio-fs device"
	DestroyDevice     Op = "destroy the virtio-fs device"
	DestroyFSFunction Op = "destroy the virtio-fs function"
)

// Of the notes: SNAP is not asked.
const (
	NoteFunction Op = "note the function"
	// NoteGiven is before a controller in a subsystem of others.
	NoteGiven  Op = "note which function was given"
	ForgetNote Op = "forget the note"
)

// Step is an Op with all that it needs. Two that are equal are the same thing
// once more.
type Step struct {
	Op         Op
	NQN        string
	NSID       uint32
	UUID       string
	Controller string
	Function   string // VUID
	PCI        string
	Manager    string
	// Maybe: it may be done already, which SNAP did not tell. Its refusal says
	// that it is.
	Maybe bool
}

// steps that a run has done, or found to be done.
type steps map[Step]bool

// undoes tells which Op of an exposure an Op of Hide takes back.
func undoes() map[Op][]Op {
	return map[Op][]Op{
		UnplugController:  {PlugController},
		DetachNamespace:   {AttachNamespace, CreateController},
		DestroyController: {CreateController},
		DestroyNamespace:  {CreateNamespace},
		DestroyFunction:   {CreateFunction},
		DestroySubsystem:  {CreateSubsystem},

		UnplugDevice:      {PlugDevice},
		SettleDevice:      {PlugDevice},
		StopDevice:        {StartDevice},
		DestroyDevice:     {CreateDevice},
		DestroyFSFunction: {CreateFSFunction},

		ForgetNote: {CreateFunction, CreateFSFunction},
	}
}

// first is the first of some steps, the zero Step of none.
func first(all []Step) Step {
	if len(all) == 0 {
		return Step{}
	}
	return all[0]
}
