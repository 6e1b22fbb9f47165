// Package weir is empty: the program is in cmd/weir. The tests beside this file
// hold the house to the rules of docs/architecture.md, and the documents to the code.
package weir
