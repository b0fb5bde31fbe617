// Package diagnosis explains what a pod or a claim waits for. It reads objects of
// the API server, follows them from pod over claim, class, volume and attachment
// to the driver of the node, and stops at the first that is not as it must be.
//
// A state (condition, status, missing object) is evidence. An event is what a
// component reported once: it is shown with its age, and used only where no state
// says more. What the user is not allowed to read is named in the answer; nothing
// is concluded from it.
//
// Messages are explained by the tables of docs/troubleshooting.md, which are part
// of the program.
package diagnosis
